"""A measured time line of tasks into causes: what its bursts took beyond T0, what its SMs waited for, and what its local twin did not."""

from __future__ import annotations

import numpy as np

from xstage_bench.errors import UsageError
from xstage_bench.model.arrays import FloatArray
from xstage_bench.model.burst_gap import STALLED
from xstage_bench.model.diagnose.lost import Diagnosis, LostPart, Stalls
from xstage_bench.model.document import Model
from xstage_bench.model.tasks.predict import TaskPrediction, node_of, predict_tasks
from xstage_bench.schedule.tasks import TaskSchedule, TaskTrace

#: T0 is taken to be known within this, which is also what a burst must exceed it by to count as stalled.
FREE = STALLED - 1
#: By which share a time of the local twin may differ from that of the next launch.
NOISE = 0.02


def diagnose_time_line(
    model: Model,
    trace: TaskTrace,
    local: TaskTrace | None = None,
    *,
    pair: str | None = None,
    same_clock: bool = True,
) -> tuple[Diagnosis, TaskPrediction]:
    """Say where the time of a measured kernel went, mean over its SMs.

    Parameters
    ----------
    model : Model
    trace : TaskTrace
        Of the kernel as it stores to its peer; as `tasks_of` makes it of stamps.
    local : TaskTrace, optional
        Of the same kernel with its stores kept local.
    pair : str, optional
        Default: the schedule's own.
    same_clock : bool
        Whether times of different SMs can be compared.

    Returns
    -------
    Diagnosis, TaskPrediction
        And what the model predicts of the same tasks.

    Raises
    ------
    UsageError
        The twin is of another kernel; or as `predict_tasks`.
    DataError
        As `predict_tasks`.
    """
    s, clock = trace.schedule, trace.sm_clock_mhz
    if local is not None and (local.schedule.producer_count, local.schedule.task_count) != (s.producer_count, s.task_count):
        mine, theirs = (f"{x.task_count} tasks on {x.producer_count} SMs" for x in (s, local.schedule))
        raise UsageError(f"the local twin did {theirs}, the kernel {mine}: they are not the same kernel", "--local of the same launch")
    predicted = predict_tasks(model, s, sm_clock_mhz=clock, pair=pair)
    here, free, free_is = _parts(trace), float(np.nansum(predicted.t0_ns)) / s.producer_count, "T0 as predicted"
    unsure = FREE * free
    twin = None if local is None else _parts(local)
    if twin is not None:
        free, free_is, unsure = twin["issue"], "the local twin's", NOISE * twin["issue"]
    issue, total = here["issue"], trace.total_ns
    stall = max(0.0, issue - free)
    rate = node_of(model, s, pair).used["link_gb_per_s"]
    volume = int(s.remote_bytes.sum())
    drain_ns = volume / rate
    first = float(np.nanmin(trace.compute_end_ns[s.bytes > 0])) if s.bytes.any() else 0.0
    available = total - stall - first
    drain = min(max(0.0, drain_ns - available), stall)
    stalls: Stalls = "yes" if stall > unsure and issue > STALLED * free else "no"
    if not s.remote_bytes.any():
        reason = "nothing is stored to a peer"
    else:
        reason = f"the bursts of an SM take {issue * 1e-3:.2f} us, {free_is} {free * 1e-3:.2f}"
    there = f"V/R is {drain_ns * 1e-3:.1f} us, {available * 1e-3:.1f} us are there for it"
    rest_of_stall = stall - drain
    parts = (
        LostPart.of("capacity", rest_of_stall, rest_of_stall - unsure, rest_of_stall + unsure, f"{reason}; less what the drain needs"),
        LostPart.of("drain", drain, drain - unsure, min(drain + unsure, stall), there),
        _operands(here, twin),
        _publishing(s, here, twin, predicted),
        _out_of_step(here, twin, predicted, same_clock),
    )  # fmt: skip
    known = [p for p in parts if p.ns is not None]
    if local is None:
        lost = sum(p.ns or 0.0 for p in known)
        low, high = sum(p.low_ns or 0.0 for p in known), sum(p.high_ns or 0.0 for p in known)
        rest = LostPart.unknown("none_of_these", "without the local twin (--local) other losses look like work")
    else:
        lost = total - local.total_ns
        low, high = lost - NOISE * local.total_ns, lost + NOISE * local.total_ns
        told = [sum(getattr(p, end) or 0.0 for p in known) for end in ("ns", "high_ns", "low_ns")]
        rest = LostPart.of("none_of_these", lost - told[0], low - told[1], high - told[2], "the loss less all of the above")
    diagnosis = Diagnosis(
        source="time line", total_ns=total, local_ns=None if local is None else local.total_ns, lost_ns=lost, lost_low_ns=low,
        lost_high_ns=high, stalls=stalls, reason=reason, bytes=volume, drain_ns=drain_ns, drain_gb_per_s=rate, parts=(*parts, rest),
        notes=predicted.notes,
    )  # fmt: skip
    return diagnosis, predicted


def _parts(found: TaskTrace | TaskPrediction) -> dict[str, float]:
    """Times of the parts of a time line, mean over its SMs, ns: stores, compute, signals, and idle before, between and after tasks."""
    s = found.schedule
    after = np.where(np.isfinite(found.store_end_ns), found.store_end_ns, found.compute_end_ns)
    ends = np.fmax(after, found.signal_end_ns)
    first = s.first[:-1]
    before = np.roll(ends, 1)
    before[first] = float(np.nanmin(found.start_ns))
    last = np.maximum.reduceat(ends, first)

    def mean(values: FloatArray) -> float:
        return float(np.nansum(values)) / s.producer_count

    return {
        "issue": mean(found.store_end_ns - found.compute_end_ns),
        "compute": mean(found.compute_end_ns - found.start_ns),
        "signal": mean(found.signal_end_ns - after),
        "idle": mean(np.maximum(found.start_ns - before, 0.0)) + float(np.mean(last.max() - last)),
    }


def _operands(here: dict[str, float], twin: dict[str, float] | None) -> LostPart:
    if twin is None:
        return LostPart.unknown("late_operands", "only beside the compute of its local twin (--local)")
    more, unsure = here["compute"] - twin["compute"], NOISE * twin["compute"]
    words = f"the compute of an SM takes {here['compute'] * 1e-3:.2f} us, with local stores {twin['compute'] * 1e-3:.2f}"
    return LostPart.of("late_operands", more, more - unsure, more + unsure, words)


def _publishing(s: TaskSchedule, here: dict[str, float], twin: dict[str, float] | None, predicted: TaskPrediction) -> LostPart:
    if not (s.signals >= 0).any():
        return LostPart.unknown("publishing", "no signal is in the time line")
    if twin is not None:
        free, words = twin["signal"], "with local stores"
    else:
        costs = predicted.publish_ns[s.signals >= 0]
        free, words = float(np.nanmin(costs)) * costs.size / s.producer_count, "behind an empty stage"
    more, unsure = here["signal"] - free, (NOISE if twin else FREE) * free
    evidence = f"the signals of an SM take {here['signal'] * 1e-3:.2f} us, {words} {free * 1e-3:.2f}"
    return LostPart.of("publishing", more, more - unsure, more + unsure, evidence)


def _out_of_step(here: dict[str, float], twin: dict[str, float] | None, predicted: TaskPrediction, same_clock: bool) -> LostPart:
    if not same_clock:
        return LostPart.unknown("out_of_step", "this time line has no clock that its SMs share")
    idle = here["idle"]
    if twin is not None:
        bare, words = twin["idle"], "with local stores"
    else:
        bare, words = _idle_without_stores(predicted), "because of its own work and events"
    unsure = NOISE * bare
    evidence = f"an SM waits {idle * 1e-3:.2f} us before, between and after its tasks, {words} {bare * 1e-3:.2f}"
    return LostPart.of("out_of_step", idle - bare, idle - bare - unsure, idle - bare + unsure, evidence)


def _idle_without_stores(predicted: TaskPrediction) -> float:
    """Idle time of an SM were nothing held its stores back, ns: the shorter lists end earlier, and events are waited for."""
    s = predicted.schedule
    work = np.add.reduceat(predicted.compute_end_ns - predicted.start_ns, s.first[:-1])
    if (s.waits_for >= 0).any():
        return max(0.0, predicted.without_stores_ns - float(work.mean()))
    work = work + np.add.reduceat(np.nan_to_num(predicted.t0_ns), s.first[:-1])
    return float(work.max() - work.mean())
