"""What a TaskSchedule costs, task by task: the node model of its pair with compute and dependencies around it (docs/predict.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xstage_bench.errors import DataError, UsageError
from xstage_bench.io.short_repr import short_repr
from xstage_bench.model.arrays import BoolArray, FloatArray, IntArray
from xstage_bench.model.burst_gap import STALLED, asked_clock
from xstage_bench.model.document import HoldoutStatus, Model
from xstage_bench.model.node.entry import NodeEntry, model_of
from xstage_bench.model.node.intervals import DEEP, REGIMES, in_range
from xstage_bench.model.node.parameters import NodeModel
from xstage_bench.model.node_pair import entry_of
from xstage_bench.model.tasks.compiled import Loop, choose_loop, run
from xstage_bench.model.tasks.costs import TaskCosts, costs_of, find_costs, notes_of, reference_costs
from xstage_bench.model.tasks.state import LEVEL, NOW, State
from xstage_bench.model.tasks.work import work_of
from xstage_bench.schedule.tasks import TaskSchedule

#: An issue time that exceeds T0 by less is T0 by another way of adding it up.
ROUNDING_NS = 1e-6
#: Columns of `TaskPrediction.rows`, beside the schedule's own.
COLUMNS = (
    "start_ns",
    "compute_end_ns",
    "store_end_ns",
    "signal_end_ns",
    "issue_ns",
    "t0_ns",
    "stall_ns",
    "publish_ns",
    "issue_low_ns",
    "issue_high_ns",
    "backlog_bytes",
    "visible_ns",
    "in_calibrated_range",
)


@dataclass(frozen=True, slots=True, eq=False)
class TaskPrediction:
    """Prediction of one TaskSchedule. Arrays have shape (tasks,); times are ns after the common start, NaN where a task has no such part.

    Parameters
    ----------
    schedule : TaskSchedule
    pair : str
        The pair whose model was used.
    smids : ndarray of int, shape (K,)
    sm_clock_mhz : float
        At which cycles were converted.
    start_ns, compute_end_ns, store_end_ns, signal_end_ns : ndarray
        As in `TaskTrace`.
    t0_ns : ndarray
        Issue time of the task's stores without backpressure.
    issue_low_ns, issue_high_ns : ndarray
        90 % interval of the issue time of its stores.
    backlog_bytes : ndarray
        Of all producers, issued and not yet drained when the task's stores have been issued.
    visible_ns : ndarray
        When its last byte has arrived and its SM knows it.
    in_calibrated_range : ndarray of bool
        K, W and bytes lie within what the fit has seen.
    total_ns : float
        When the last task has ended.
    total_low_ns, total_high_ns : float or None
        90 % interval of it; None where the model has no replays to learn it from.
    without_stores_ns : float
        The same schedule with nothing stored; NaN where it was not asked for.
    all_visible_ns : float
        When a system-scope fence of every producer has returned after its last task.
    notes : tuple of str
        What the prediction stands on other than the model, and what it leaves out here.
    costs_from : str
        The GPU on which what a task costs beside its work was measured.
    holdout : {'pass', 'fail', 'undetermined', 'not_judged'}
        How the pair's model did on the hold-out of its own run; after ``fail`` its numbers must not be used.
    """

    __repr__ = short_repr

    schedule: TaskSchedule
    pair: str
    smids: IntArray
    sm_clock_mhz: float
    start_ns: FloatArray
    compute_end_ns: FloatArray
    store_end_ns: FloatArray
    signal_end_ns: FloatArray
    t0_ns: FloatArray
    issue_low_ns: FloatArray
    issue_high_ns: FloatArray
    backlog_bytes: FloatArray
    visible_ns: FloatArray
    in_calibrated_range: BoolArray
    total_ns: float
    total_low_ns: float | None
    total_high_ns: float | None
    without_stores_ns: float
    all_visible_ns: float
    notes: tuple[str, ...] = ()
    costs_from: str = ""
    holdout: HoldoutStatus = "not_judged"

    @property
    def issue_ns(self) -> FloatArray:
        """Issue time of each task's stores."""
        return self.store_end_ns - self.compute_end_ns

    @property
    def stall_ns(self) -> FloatArray:
        """What backpressure adds to it."""
        more = self.issue_ns - self.t0_ns
        return np.where(more < ROUNDING_NS, 0.0, more)

    @property
    def publish_ns(self) -> FloatArray:
        """What the signal costs, its wait for the drain included."""
        after = np.where(np.isfinite(self.store_end_ns), self.store_end_ns, self.compute_end_ns)
        return self.signal_end_ns - after

    @property
    def end_ns(self) -> FloatArray:
        """When each task has ended, its last part included."""
        return np.fmax(np.fmax(self.compute_end_ns, self.store_end_ns), self.signal_end_ns)

    @property
    def stores_ns(self) -> float:
        """The part of the total time that is due to stores."""
        return self.total_ns - self.without_stores_ns

    def document(self) -> dict[str, Any]:
        """Return totals and tasks as plain values for JSON."""
        totals = ("total_ns", "total_low_ns", "total_high_ns", "without_stores_ns", "stores_ns", "all_visible_ns")
        return {
            "task_schedule": self.schedule.key(),
            "name": self.schedule.name,
            "pair": self.pair,
            "sm_clock_mhz": self.sm_clock_mhz,
            **{name: getattr(self, name) for name in totals},
            "notes": list(self.notes),
            "costs_from": self.costs_from,
            "holdout": self.holdout,
            "tasks": self.rows(),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one dict of plain numbers per task, ready for JSON or a table; None where a task has no such part."""
        s = self.schedule
        own = {name: getattr(s, name).tolist() for name in ("producer", "compute_cycles", "bytes", "remote_bytes", "waits_for", "signals")}
        found = {name: [None if x != x else x for x in getattr(self, name).tolist()] for name in COLUMNS}  # NaN: no such part
        columns = {**own, **found}
        phase = s.phase.tolist()
        return [
            {"task": i, "phase": s.phases[phase[i]], **{name: column[i] for name, column in columns.items()}} for i in range(s.task_count)
        ]


def predict_tasks(
    model: Model,
    schedule: TaskSchedule,
    *,
    sm_clock_mhz: float | None = None,
    pair: str | None = None,
    costs: TaskCosts | None = None,
    compute: str = "mma",
    compiled: bool | None = None,
    twin: bool = True,
) -> TaskPrediction:
    """Predict a TaskSchedule.

    Parameters
    ----------
    model : Model
    schedule : TaskSchedule
    sm_clock_mhz : float, optional
        SM clock of the prediction; default is the model's. What the SM does scales with it, what the link does not.
    pair : str, optional
        Use the model of this pair; default is the schedule's own.
    costs : TaskCosts, optional
        Default: the model's, else those of the recorded node.
    compute : {'mma', 'spin'}
        Which of those: of tasks whose compute is tensor-core work, or waiting.
    compiled : bool, optional
        Whether the event loop is the compiled one, which needs numba and gives the same numbers. Default: when there is numba, and enough
        to predict to be worth loading it.
    twin : bool
        Predict the same schedule with nothing stored too, which takes as long again.

    Returns
    -------
    TaskPrediction

    Raises
    ------
    UsageError
        The model has no such pair, the clock is not positive, or the schedule asks for SMs that the model's map lacks.
    DataError
        The pair has no node model.
    """
    return predict_tasks_all(
        model, [schedule], sm_clock_mhz=sm_clock_mhz, pair=pair, costs=costs, compute=compute, compiled=compiled, twin=twin
    )[0]


def predict_tasks_all(
    model: Model,
    schedules: Sequence[TaskSchedule],
    *,
    sm_clock_mhz: float | None = None,
    pair: str | None = None,
    costs: TaskCosts | None = None,
    compute: str = "mma",
    compiled: bool | None = None,
    twin: bool = True,
) -> list[TaskPrediction]:
    """Predict many; see `predict_tasks`."""
    clock = asked_clock(model.sm_clock_mhz, sm_clock_mhz)
    fast = choose_loop(compiled, sum(s.task_count for s in schedules))
    own = find_costs(model.tasks, compute)
    given = costs or own or reference_costs(compute)
    notes = tuple(notes_of(given, model.gpu, own=costs is not None or own is not None))
    found = [_predict(node_of(model, s, pair), s, clock, given, notes, fast, twin) for s in schedules]
    used = [model.find(p.pair, s.flavour) for p, s in zip(found, schedules, strict=True)]
    return [p if used_by is None else replace(p, holdout=used_by.holdout_status) for p, used_by in zip(found, used, strict=True)]


def node_of(model: Model, schedule: TaskSchedule, pair: str | None = None) -> NodeEntry:
    """Return the node model that a TaskSchedule is predicted with; for a local one, that of any pair of its source.

    Raises
    ------
    UsageError
        The model has no such pair and flavour.
    DataError
        It has no node model for it.
    """
    wanted = f"{schedule.source}>{schedule.destination}" if pair is None else pair
    found = [p for p in model.pairs if p.flavour == schedule.flavour and p.layout == "contiguous"]
    if pair is None and schedule.source == schedule.destination:
        mine = [p for p in found if p.pair.startswith(f"{schedule.source}>") and p.node_basis is not None]
    else:
        mine = [p for p in found if p.pair == wanted]
    if not mine:
        have = ", ".join(p.pair for p in found if p.node_basis is not None) or "none"
        raise UsageError(f"the model has no pair {wanted} with {schedule.flavour}", f"it has node models of: {have}")
    entry = entry_of(mine[0])
    if entry is None:
        raise DataError(
            f"the model has no node model of pair {wanted}", "measure the probes isolated, periodic, timed, placement; xstage fit"
        )
    return entry


def _predict(
    entry: NodeEntry, schedule: TaskSchedule, clock: float, costs: TaskCosts, notes: tuple[str, ...], fast: Loop | None, twin: bool
) -> TaskPrediction:
    node = model_of(entry)
    executed, smids, free = _execute(node, schedule, clock, costs, fast)
    per_ns = 1e3 / clock
    total = base = float(executed.ended.max()) * per_ns
    if schedule.bytes.any():
        base = float(_execute(node, schedule.without_stores(), clock, costs, fast)[0].ended.max()) * per_ns if twin else np.nan
    issue = executed.stored - executed.computed
    low, high = _issue_factors(entry, issue / free)
    error = costs.total_error
    drained = float(executed.stage[NOW] + executed.stage[LEVEL] / node.link_bytes_per_cycle(clock))
    fence = costs_of(costs, replace(schedule, publish="release.sys")).signal
    return TaskPrediction(
        schedule=schedule,
        pair=entry.pair,
        smids=smids,
        sm_clock_mhz=clock,
        start_ns=executed.start * per_ns,
        compute_end_ns=executed.computed * per_ns,
        store_end_ns=executed.stored * per_ns,
        signal_end_ns=np.where(schedule.signals >= 0, executed.ended, np.nan) * per_ns,
        t0_ns=free * per_ns,
        issue_low_ns=issue * low * per_ns,
        issue_high_ns=issue * high * per_ns,
        backlog_bytes=np.where(schedule.bytes > 0, executed.left, np.nan),
        visible_ns=np.where(schedule.remote_bytes > 0, executed.drained + node.credit_cycles, np.nan) * per_ns,
        in_calibrated_range=_inside(entry, node, schedule),
        total_ns=total,
        total_low_ns=None if error.low is None else total * (1 + error.low),
        total_high_ns=None if error.high is None else total * (1 + error.high),
        without_stores_ns=base,
        all_visible_ns=(max(float(executed.ended.max()), drained) + fence) * per_ns,
        notes=notes,
        costs_from=costs.gpu,
    )


def _execute(
    node: NodeModel, schedule: TaskSchedule, clock: float, costs: TaskCosts, fast: Loop | None
) -> tuple[State, IntArray, FloatArray]:
    """Run the event loop; its final state, the smids, and each task's issue time without backpressure (NaN: it stores nothing)."""
    work, state, smids = work_of(node, schedule, clock, costs_of(costs, schedule))
    return run(work, state, fast), smids, np.where(work.free >= 0, work.free, np.nan)


def _issue_factors(entry: NodeEntry, times_t0: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bounds of each issue time over its prediction at 90 %: the residuals of the node model's own unseen bursts in the same regime."""
    if entry.spread is None:
        return np.full(times_t0.shape, np.nan), np.full(times_t0.shape, np.nan)
    regime = np.where(times_t0 > DEEP, REGIMES.index("deep_carried"), REGIMES.index("mild_carried"))
    regime = np.where(times_t0 > STALLED, regime, REGIMES.index("after"))
    return np.exp(np.array(entry.spread.low)[regime]), np.exp(np.array(entry.spread.high)[regime])


def _inside(entry: NodeEntry, node: NodeModel, schedule: TaskSchedule) -> BoolArray:
    if entry.spread is None:
        return np.zeros(schedule.task_count, dtype=bool)
    size = schedule.bytes.astype(np.float64)
    producers = np.full(size.shape, float(schedule.producer_count))
    warps = np.full(size.shape, float(schedule.warps))
    return np.asarray(in_range(entry.spread, node, producers, warps, size) | (size == 0))
