"""Which of a few changes makes a TaskSchedule fastest, by the predictor; none when nothing is predicted to help."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from xstage_bench.io.short_repr import short_repr
from xstage_bench.model.advise.reorder import Reordering, apply
from xstage_bench.model.document import Model
from xstage_bench.model.tasks.predict import TaskPrediction, node_of, predict_tasks_all
from xstage_bench.schedule.tasks import TaskSchedule

#: Leads tried, in quiet tasks of a producer. One to two was best nearly everywhere in measurements; short schedules want less.
LEADS = (0.25, 0.5, 1.0, 1.5, 2.0, 4.0)
#: A change must be predicted to save this share of the time to be advised, and one that is harder to make this much more.
MIN_GAIN = 0.01


@dataclass(frozen=True, slots=True)
class Candidate:
    """One recipe and what it was predicted to take."""

    recipe: Reordering
    total_ns: float
    without_stores_ns: float


@dataclass(frozen=True, slots=True, eq=False)
class TaskAdvice:
    """What to do with one TaskSchedule.

    Parameters
    ----------
    present, advised : TaskPrediction
        Of the schedule as it is, and of the advised one; the same object when nothing helps.
    recipe : Reordering
        What was done to it.
    candidates : tuple of Candidate
        Everything that was predicted, in the order in which it was tried.
    reason : str
        Why this, or why nothing.
    """

    __repr__ = short_repr

    present: TaskPrediction
    advised: TaskPrediction
    recipe: Reordering
    candidates: tuple[Candidate, ...]
    reason: str

    @property
    def schedule(self) -> TaskSchedule:
        """The advised schedule."""
        return self.advised.schedule

    @property
    def helps(self) -> bool:
        """Whether a change is advised."""
        return self.recipe != Reordering()

    @property
    def gain(self) -> float:
        """Present time over advised time."""
        return self.present.total_ns / self.advised.total_ns

    @property
    def gain_interval(self) -> tuple[float, float] | None:
        """90 % interval of the gain, never below 1 when nothing is changed; None where the predictions have none.

        Both predictions' errors count as independent, although the same model makes both: the interval is rather too wide.
        """
        if not self.helps:
            return 1.0, 1.0
        p, a = self.present, self.advised
        if p.total_low_ns is None or p.total_high_ns is None or a.total_low_ns is None or a.total_high_ns is None:
            return None
        below = np.hypot(np.log(p.total_ns / p.total_low_ns), np.log(a.total_high_ns / a.total_ns))
        above = np.hypot(np.log(p.total_high_ns / p.total_ns), np.log(a.total_ns / a.total_low_ns))
        return float(self.gain * np.exp(-below)), float(self.gain * np.exp(above))


def advise_tasks(
    model: Model, schedule: TaskSchedule, *, pair: str | None = None, sm_clock_mhz: float | None = None, splitting: bool = False
) -> TaskAdvice:
    """Choose among few changes of a schedule; see `Reordering`.

    First the order alone, at several leads; then the best of them, or the order as it is, with storing tasks in two parts and with
    producers set apart by the time that one burst of all takes to drain.

    Parameters
    ----------
    model : Model
    schedule : TaskSchedule
    pair : str, optional
        Use the model of this pair; default is the schedule's own.
    sm_clock_mhz : float, optional
    splitting : bool
        Whether storing tasks may be cut: a kernel would need smaller tiles, and what those cost its tensor cores is not modelled.

    Returns
    -------
    TaskAdvice
        Never one that is predicted slower than the schedule as it is.
    """

    def predict(recipes: list[Reordering]) -> list[tuple[Reordering, TaskPrediction]]:
        made = [(r, changed) for r in recipes if (changed := apply(r, schedule)) is not None]
        found = predict_tasks_all(model, [s for _, s in made], pair=pair, sm_clock_mhz=sm_clock_mhz)
        return [(r, p) for (r, _), p in zip(made, found, strict=True)]

    storing = schedule.remote_bytes > 0
    tried = predict([Reordering()])
    present = tried[0][1]
    if not storing.any():
        return _advice(tried, tried[0], "nothing is stored to the other GPU")
    if not storing.all():
        tried += predict([Reordering(lead=lead) for lead in LEADS])
    best = _simplest(tried)
    tried += predict([replace(best[0], stagger_cycles=_burst_drain_cycles(model, present))])
    tried += predict([replace(best[0], parts=2)] if splitting else [])
    best = _simplest(tried)
    if best[0] == Reordering():
        return _advice(tried, tried[0], _why_nothing(present))
    return _advice(tried, best, f"{best[0].words()}: the stores then take {best[1].stores_ns:.0f} instead of {present.stores_ns:.0f} ns")


def _simplest(tried: list[tuple[Reordering, TaskPrediction]]) -> tuple[Reordering, TaskPrediction]:
    """Return the fastest, but a harder change only where it saves `MIN_GAIN` more than an easier one."""

    def effort(recipe: Reordering) -> int:
        return int(recipe.lead is not None) + 2 * int(recipe.stagger_cycles > 0) + 3 * int(recipe.parts > 1)

    return min(tried, key=lambda x: x[1].total_ns * (1 + MIN_GAIN) ** effort(x[0]))


def _burst_drain_cycles(model: Model, present: TaskPrediction) -> int:
    """Cycles in which one storing task of every producer drains."""
    s = present.schedule
    volume = float(s.remote_bytes[s.remote_bytes > 0].mean()) * s.producer_count
    rate = node_of(model, s, present.pair).used["link_gb_per_s"]
    return round(volume / rate * present.sm_clock_mhz * 1e-3)


def _why_nothing(present: TaskPrediction) -> str:
    share = present.stores_ns / present.total_ns
    if share < MIN_GAIN:
        return f"the stores cost {max(share, 0):.1%} of the time: there is nothing to gain"
    return f"no order, size or stagger tried was predicted to save {MIN_GAIN:.0%} of the time, of which the stores are {share:.0%}"


def _advice(tried: list[tuple[Reordering, TaskPrediction]], best: tuple[Reordering, TaskPrediction], reason: str) -> TaskAdvice:
    candidates = tuple(Candidate(r, p.total_ns, p.without_stores_ns) for r, p in tried)
    return TaskAdvice(tried[0][1], best[1], best[0], candidates, reason)
