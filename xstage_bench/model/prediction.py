"""A predicted schedule, whichever model predicted it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Literal

import numpy as np

from xstage_bench.io.short_repr import short_repr
from xstage_bench.model.arrays import BoolArray, FloatArray, IntArray
from xstage_bench.model.burst_gap import STALLED
from xstage_bench.model.document import HoldoutStatus
from xstage_bench.schedule.bursts import Schedule

Form = Literal["node", "burst_gap"]
#: Why a burst is not `in_calibrated_range`.
EXTRAPOLATED = "producers, warps or bytes of a burst lie outside what the fit has seen: extrapolated"
APART = "warps_meet is false, and the models assume that an SM's warps meet between bursts: those after the first are outside of them"
_COLUMNS = (
    "t0_cycles",
    "issue_cycles",
    "issue_max_cycles",
    "issue_low_cycles",
    "issue_high_cycles",
    "stall_cycles",
    "backlog_bytes",
    "start_ns",
    "end_ns",
    "visible_ns",
    "in_calibrated_range",
)


@dataclass(frozen=True, slots=True, eq=False)
class PredictedSchedule:
    """Prediction per burst; all arrays have shape (bursts,).

    Parameters
    ----------
    pair : str
        The pair whose model was used.
    model : {'node', 'burst_gap'}
        Which model predicted.
    sm_clock_mhz : float
        At which cycles were converted.
    t0_cycles : ndarray of float
        Issue time without backpressure.
    issue_cycles : ndarray of float
        Predicted mean over producers.
    issue_max_cycles : ndarray of float
        The slowest producer; the Burst-Gap law has all producers alike.
    issue_low_cycles, issue_high_cycles : ndarray of float
        90 % prediction interval. Of ``burst_gap`` by the law's own error on isolated bursts, without backlog and stagger; of ``node`` by
        the residuals of unseen schedules in the burst's regime.
    stall_cycles : ndarray of float
        issue - T0.
    backlog_bytes : ndarray of float
        Issued and not yet drained when the burst's issue ends, all producers together.
    start_ns, end_ns : ndarray of float
        Start and end of issue, mean over producers, after the schedule's time zero; of isolated bursts, after each burst's own start.
    visible_ns : ndarray of float
        When the last byte of the burst has drained, likewise.
    regime : tuple of str
        ``free`` or ``stalled`` (more than 1.1 T0).
    in_calibrated_range : ndarray of bool
        K, W and bytes lie within what the fit has seen, and the burst does not follow another one of warps that do not meet.
    total_ns : float
        Time until the last burst has been issued.
    notes : tuple of str
        Which of these it is where one is false.
    holdout : {'pass', 'fail', 'undetermined', 'not_judged'}
        How the pair's model did on the hold-out of its own run; after ``fail`` its numbers must not be used.
    """

    __repr__ = short_repr

    pair: str
    model: Form
    sm_clock_mhz: float
    t0_cycles: FloatArray
    issue_cycles: FloatArray
    issue_max_cycles: FloatArray
    issue_low_cycles: FloatArray
    issue_high_cycles: FloatArray
    stall_cycles: FloatArray
    backlog_bytes: FloatArray
    start_ns: FloatArray
    end_ns: FloatArray
    visible_ns: FloatArray
    regime: tuple[str, ...]
    in_calibrated_range: BoolArray
    total_ns: float
    notes: tuple[str, ...] = ()
    holdout: HoldoutStatus = "not_judged"

    def rows(self, first: int = 0, end: int | None = None) -> list[dict[str, Any]]:
        """Return one dict of plain numbers per burst, ready for JSON or a table: of all bursts, or of some."""
        end = len(self.regime) if end is None else min(end, len(self.regime))
        columns = [getattr(self, name)[first:end].tolist() for name in _COLUMNS]
        names = ("burst", *_COLUMNS, "regime")
        return [dict(zip(names, row, strict=True)) for row in zip(range(first, end), *columns, self.regime[first:end], strict=True)]


def rows_of_all(found: Sequence[PredictedSchedule]) -> Iterator[list[dict[str, Any]]]:
    """Yield what `PredictedSchedule.rows` returns for each of several; all their bursts are in memory at once."""
    columns = [np.concatenate([getattr(p, name) for p in found]).tolist() for name in _COLUMNS]
    counts = [len(p.regime) for p in found]
    names = ("burst", *_COLUMNS, "regime")
    numbers = chain.from_iterable(map(range, counts))
    rows = (dict(zip(names, row, strict=True)) for row in zip(numbers, *columns, chain.from_iterable(p.regime for p in found), strict=True))
    return (list(islice(rows, count)) for count in counts)


def total_ns(schedule: Schedule, start_ns: FloatArray, end_ns: FloatArray) -> float:
    """Time until the last burst has been issued; isolated bursts have no common time line, so theirs is the sum."""
    return float((end_ns - start_ns).sum() if schedule.start == "isolated" else end_ns[-1])


def cut(
    schedules: Sequence[Schedule],
    first: IntArray,
    columns: Mapping[str, FloatArray],
    seen: BoolArray,
    notes: Sequence[tuple[str, ...]] | None = None,
    **whole: Any,
) -> list[PredictedSchedule]:
    """Cut the predictions of many schedules into one for each.

    Parameters
    ----------
    schedules : sequence of Schedule
    first : ndarray of int, shape (schedules + 1,)
        Bursts of schedule i are ``first[i]:first[i + 1]``.
    columns : mapping of str to ndarray, shape (bursts,)
        The fields of `PredictedSchedule` with one number for each burst.
    seen : ndarray of bool, shape (bursts,)
        K, W and bytes lie within what the fit has seen.
    notes : sequence of tuple of str, optional
        More notes on each schedule.
    **whole
        The fields that all have in common.
    """
    begin, end = columns["start_ns"], columns["end_ns"]
    totals = np.where([s.start == "isolated" for s in schedules], np.add.reduceat(end - begin, first[:-1]), end[first[1:] - 1]).tolist()
    known = np.logical_and.reduceat(seen, first[:-1]).tolist()
    regime = np.where(columns["issue_cycles"] > STALLED * columns["t0_cycles"], "stalled", "free").tolist()
    names, arrays = tuple(columns), tuple(columns.values())
    edges = first.tolist()
    out = []
    for i, s in enumerate(schedules):
        at = slice(edges[i], edges[i + 1])
        inside, said = seen[at], () if known[i] else (EXTRAPOLATED,)
        if not s.warps_meet and inside.size > 1:
            inside, said = inside & (np.arange(inside.size) == 0), (*said, APART)
        of_bursts: dict[str, Any] = {name: array[at] for name, array in zip(names, arrays, strict=True)}
        out.append(
            PredictedSchedule(
                **of_bursts,
                regime=tuple(regime[at]),
                in_calibrated_range=inside,
                total_ns=totals[i],
                notes=(*said, *notes[i]) if notes else said,
                **whole,
            )
        )
    return out
