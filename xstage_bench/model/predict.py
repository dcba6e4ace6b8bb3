"""What a Schedule costs, burst by burst: by the node model of its pair, or by the Burst-Gap law with the backlog carried along."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from xstage_bench.errors import DataError, UsageError
from xstage_bench.model.arrays import FloatArray
from xstage_bench.model.burst_gap import STALLED, asked_clock
from xstage_bench.model.document import Model, PairModel
from xstage_bench.model.headline import headline_entry, t0_at
from xstage_bench.model.interpolate import Law, law_at
from xstage_bench.model.node_pair import predict_by_node
from xstage_bench.model.prediction import Form, PredictedSchedule, judged_range, total_ns
from xstage_bench.schedule.bursts import Schedule


def predict(
    model: Model, schedule: Schedule, pair: str | None = None, sm_clock_mhz: float | None = None, form: Form | None = None
) -> PredictedSchedule:
    """Predict a schedule.

    Parameters
    ----------
    model : Model
    schedule : Schedule
    pair : str, optional
        Use the model of this pair; default is the schedule's own.
    sm_clock_mhz : float, optional
        SM clock of the prediction; default is the model's. T0 scales with it, R does not.
    form : {'node', 'burst_gap'}, optional
        Default: the node model where the pair has one, else the Burst-Gap law.

    Returns
    -------
    PredictedSchedule

    Notes
    -----
    The Burst-Gap law: with q the backlog in bytes when burst i starts and e the time from its start to that of the next::

        issue_i = max(T0_i, (V_i + q_i - Q) / R)
        q_(i+1) = max(0, q_i + V_i - R * e_i)

    so that equal bursts at equal gaps settle at X-Stage's max(T0, V/R - G) (arXiv 2607.23264). An isolated burst has q = 0. The mean over
    producers is predicted, so R and Q are those of the mean (`interpolate.Law`), not of the slowest producer.

    Raises
    ------
    UsageError
        The model has no such pair, flavour or layout, or the clock is not positive.
    DataError
        Nothing was identified for that pair, or it has no node model although that form is asked for.
    """
    return predict_all(model, [schedule], pair, sm_clock_mhz, form)[0]


def predict_all(
    model: Model, schedules: Sequence[Schedule], pair: str | None = None, sm_clock_mhz: float | None = None, form: Form | None = None
) -> list[PredictedSchedule]:
    """Predict many schedules; much faster than one by one. See `predict`."""
    out: dict[int, PredictedSchedule] = {}
    by_pair: dict[str, tuple[PairModel, list[int]]] = {}
    for i, schedule in enumerate(schedules):
        found = pair_model(model, schedule, pair)
        by_pair.setdefault(f"{found.pair} {found.flavour} {found.layout}", (found, []))[1].append(i)
    for found, mine in by_pair.values():
        predicted = predict_by_node(found, [schedules[i] for i in mine], sm_clock_mhz) if form != "burst_gap" else None
        if predicted is None:
            if form == "node":
                raise DataError(
                    f"the model has no node model of pair {found.pair}",
                    "measure the probes isolated, periodic, timed, placement; xstage fit",
                )
            predicted = [_burst_gap(model, found, schedules[i], sm_clock_mhz) for i in mine]
        out.update(zip(mine, (replace(p, holdout=found.holdout_status) for p in predicted), strict=True))
    return [out[i] for i in range(len(schedules))]


def _burst_gap(model: Model, found: PairModel, schedule: Schedule, sm_clock_mhz: float | None) -> PredictedSchedule:
    clock = asked_clock(model.sm_clock_mhz, sm_clock_mhz)
    law = law_at(found, schedule.producer_count, schedule.warps, model.sm_clock_mhz)
    t0_cycles = free_cycles(law, schedule)
    volume = np.array([b.bytes for b in schedule.bursts], dtype=np.float64) * schedule.producer_count
    scale = 1e3 / clock
    backlog = np.zeros(len(volume))

    def issue_ns(burst: int, start_ns: float, previous_start_ns: float) -> float:
        if burst and schedule.start != "isolated":
            drained = law.mean_gb_per_s * (start_ns - previous_start_ns)
            backlog[burst] = max(0.0, backlog[burst - 1] + volume[burst - 1] - drained)
        stalled = float(volume[burst] + backlog[burst] - law.mean_capacity_bytes) / law.mean_gb_per_s
        return max(float(t0_cycles[burst]) * scale, stalled if volume[burst] and np.isfinite(stalled) else 0.0)

    start, end = time_line(schedule, clock, issue_ns)
    issue = (end - start) / scale
    left = np.maximum(backlog + volume - law.mean_gb_per_s * (end - start), 0.0)
    known = found.calibrated_range
    sizes = np.array([b.bytes for b in schedule.bursts])
    inside = _within(schedule.producer_count, known.producers) and _within(schedule.warps, known.warps)
    in_range, notes = judged_range(schedule, np.array([bool(inside and _within(int(b), known.bytes)) for b in sizes]))
    return PredictedSchedule(
        pair=found.pair,
        model="burst_gap",
        sm_clock_mhz=clock,
        t0_cycles=t0_cycles,
        issue_cycles=issue,
        issue_max_cycles=issue,
        issue_low_cycles=issue * max(0.0, 1 - law.relative_error),
        issue_high_cycles=issue * (1 + law.relative_error),
        stall_cycles=np.maximum(0.0, issue - t0_cycles),
        backlog_bytes=left,
        start_ns=start,
        end_ns=end,
        visible_ns=end + left / law.mean_gb_per_s,
        regime=tuple("stalled" if s else "free" for s in issue > STALLED * t0_cycles),
        in_calibrated_range=in_range,
        total_ns=total_ns(schedule, start, end),
        notes=notes,
    )


def pair_model(model: Model, schedule: Schedule, pair: str | None = None) -> PairModel:
    """Return the model of a schedule's pair, flavour and layout; UsageError names what there is."""
    wanted = f"{schedule.source}>{schedule.destination}" if pair is None else pair
    found = model.find(wanted, schedule.flavour, schedule.layout)
    if found is None:
        have = ", ".join(f"{p.pair} {p.flavour} {p.layout}" for p in model.pairs) or "none"
        raise UsageError(f"the model has no pair {wanted} with {schedule.flavour} {schedule.layout}", f"it has: {have}")
    return found


def free_cycles(law: Law, schedule: Schedule) -> FloatArray:
    """T0 of each burst; an empty burst costs nothing."""
    stores = schedule.stores_per_warp().astype(np.float64)
    return np.where(stores > 0, law.issue_base_cycles + law.issue_cycles_per_store * stores, 0.0)


def time_line(schedule: Schedule, sm_clock_mhz: float, issue_ns: Callable[[int, float, float], float]) -> tuple[FloatArray, FloatArray]:
    """Place bursts in time by the schedule's start rule.

    Parameters
    ----------
    schedule : Schedule
    sm_clock_mhz : float
    issue_ns : callable
        Issue time of a burst in ns, given its index, its start and the start of the one before it.

    Returns
    -------
    start_ns, end_ns : ndarray, shape (bursts,)
    """
    count = len(schedule.bursts)
    start, end = np.zeros(count), np.zeros(count)
    for i, burst in enumerate(schedule.bursts):
        if schedule.start == "free" and i:
            start[i] = end[i - 1] + burst.gap_cycles * 1e3 / sm_clock_mhz
        elif schedule.start == "timed":
            start[i] = max(float(burst.start_ns), end[i - 1] if i else 0.0)
        end[i] = start[i] + issue_ns(i, float(start[i]), float(start[i - 1]) if i else 0.0)
    return start, end


def _within(value: int, ends: tuple[int, int] | None) -> bool:
    return ends is not None and ends[0] <= value <= ends[1]


def predict_schedules(
    model: Model, schedules: Sequence[Schedule], *, pair: str | None = None, sm_clock_mhz: float | None = None
) -> list[PredictedSchedule]:
    """Predict schedules with a model.

    Raises
    ------
    UsageError
        The model has no such pair or flavour, or a schedule has more producers than its GPU has SMs: every fit includes all SMs,
        so the largest count that it has seen is that of the GPU.
    """
    for schedule in schedules:
        seen = pair_model(model, schedule, pair).calibrated_range.producers
        if seen is not None and schedule.producer_count > seen[1]:
            raise UsageError(
                f"{schedule.producer_count} producers asked for, but the {model.gpu} of the model has {seen[1]} SMs",
                f"use at most {seen[1]} producers",
            )
    found = predict_all(model, schedules, pair, sm_clock_mhz)
    return [replace(p, notes=(*p.notes, *_t0_notes(pair_model(model, s, pair), s))) for s, p in zip(schedules, found, strict=True)]


def _t0_notes(pair: PairModel, schedule: Schedule) -> list[str]:
    """Say that T0 of a burst larger than Q was not measured: where it was."""
    entry = pair.find(schedule.producer_count, schedule.warps) or headline_entry(pair)
    fits = None if entry is None else entry.capacity_bytes_per_producer.value
    if entry is None or fits is None or max((b.bytes for b in schedule.bursts), default=0) <= fits:
        return []
    return [f"T0 of bursts above Q, {fits / 1e3:.3g} kB per SM, is extrapolated; the fit has it at {t0_at(entry)} per SM"]
