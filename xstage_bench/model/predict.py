"""What a Schedule costs, burst by burst: by the node model of its pair, or by the Burst-Gap law with the backlog carried along."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from xstage_bench.errors import DataError, UsageError
from xstage_bench.model.arrays import BoolArray, FloatArray, IntArray
from xstage_bench.model.burst_gap import asked_clock
from xstage_bench.model.document import Model, PairModel
from xstage_bench.model.headline import headline_entry, t0_at
from xstage_bench.model.interpolate import Law, law_at
from xstage_bench.model.node.packed import pack
from xstage_bench.model.node_pair import predict_by_node
from xstage_bench.model.prediction import Form, PredictedSchedule, cut
from xstage_bench.model.stage import require_sms
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
    model: Model,
    schedules: Sequence[Schedule],
    pair: str | None = None,
    sm_clock_mhz: float | None = None,
    form: Form | None = None,
    compiled: bool | None = None,
) -> list[PredictedSchedule]:
    """Predict many schedules; much faster than one by one. See `predict`, and `predict_node` for `compiled`."""
    return _predict_all(model, schedules, _pairs(model, schedules, pair), sm_clock_mhz, form, compiled=compiled)


def _pairs(model: Model, schedules: Sequence[Schedule], pair: str | None) -> list[PairModel]:
    found: dict[tuple[int, int, str, str], PairModel] = {}
    heads = [(s.source, s.destination, s.flavour, s.layout) for s in schedules]
    for head, schedule in zip(heads, schedules, strict=True):
        if head not in found:
            found[head] = pair_model(model, schedule, pair)
    return [found[head] for head in heads]


def _predict_all(
    model: Model,
    schedules: Sequence[Schedule],
    pairs: Sequence[PairModel],
    sm_clock_mhz: float | None,
    form: Form | None = None,
    notes: Sequence[tuple[str, ...]] | None = None,
    compiled: bool | None = None,
) -> list[PredictedSchedule]:
    out: list[PredictedSchedule | None] = [None] * len(schedules)
    by_pair: dict[int, list[int]] = {}
    for i, found in enumerate(pairs):
        by_pair.setdefault(id(found), []).append(i)
    for mine in by_pair.values():
        found, chosen = pairs[mine[0]], [schedules[i] for i in mine]
        said = [notes[i] for i in mine] if notes else None
        predicted = predict_by_node(found, chosen, sm_clock_mhz, said, compiled) if form != "burst_gap" else None
        if predicted is None:
            if form == "node":
                raise DataError(
                    f"the model has no node model of pair {found.pair}",
                    "measure the probes isolated, periodic, timed, placement; xstage fit",
                )
            predicted = _burst_gap(model, found, chosen, sm_clock_mhz, said)
        for i, p in zip(mine, predicted, strict=True):
            out[i] = p
    return cast("list[PredictedSchedule]", out)


def _burst_gap(
    model: Model, found: PairModel, schedules: Sequence[Schedule], sm_clock_mhz: float | None, notes: Sequence[tuple[str, ...]] | None
) -> list[PredictedSchedule]:
    clock = asked_clock(model.sm_clock_mhz, sm_clock_mhz)
    scale = 1e3 / clock
    packed = pack(schedules)
    owner, first = packed.owner, packed.first.tolist()
    kinds = [(s.producer_count, s.warps) for s in schedules]
    at = {kw: law_at(found, *kw, model.sm_clock_mhz) for kw in set(kinds)}
    laws = [at[kw] for kw in kinds]

    def of_law(name: str) -> FloatArray:
        return np.array([getattr(law, name) for law in laws], dtype=np.float64)[owner]

    producers = np.array([k for k, _ in kinds])
    stores = packed.bytes // (packed.warps * packed.store_bytes)[owner]
    t0_cycles = np.where(stores > 0, of_law("issue_base_cycles") + of_law("issue_cycles_per_store") * stores, 0.0)
    volume, rate = packed.bytes * producers[owner], of_law("mean_gb_per_s")
    backlog, start, end = (np.zeros(volume.size) for _ in range(3))
    free_ns, volumes = (t0_cycles * scale).tolist(), volume.tolist()
    for i, (s, law) in enumerate(zip(schedules, laws, strict=True)):
        carried = previous = ended = 0.0
        for j, burst in enumerate(s.bursts, first[i]):
            begin = 0.0
            if s.start == "free" and j > first[i]:
                begin = ended + burst.gap_cycles * 1e3 / clock
            elif s.start == "timed":
                begin = max(float(burst.start_ns), ended)
            if s.start != "isolated" and j > first[i]:
                carried = max(0.0, carried + volumes[j - 1] - law.mean_gb_per_s * (begin - previous))
            stalled = (volumes[j] + carried - law.mean_capacity_bytes) / law.mean_gb_per_s
            ended = begin + max(free_ns[j], stalled if volumes[j] and math.isfinite(stalled) else 0.0)
            start[j], end[j], backlog[j], previous = begin, ended, carried, begin
    issue = (end - start) / scale
    left = np.maximum(backlog + volume - rate * (end - start), 0.0)
    known, error = found.calibrated_range, of_law("relative_error")
    inside = _within(producers, known.producers)[owner] & _within(packed.warps, known.warps)[owner] & _within(packed.bytes, known.bytes)
    columns = {
        "t0_cycles": t0_cycles,
        "issue_cycles": issue,
        "issue_max_cycles": issue,
        "issue_low_cycles": issue * np.maximum(0.0, 1 - error),
        "issue_high_cycles": issue * (1 + error),
        "stall_cycles": np.maximum(0.0, issue - t0_cycles),
        "backlog_bytes": left,
        "start_ns": start,
        "end_ns": end,
        "visible_ns": end + left / rate,
    }
    whole = {"pair": found.pair, "model": "burst_gap", "sm_clock_mhz": clock, "holdout": found.holdout_status}
    return cut(schedules, packed.first, columns, inside, notes, **whole)


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


def _within(values: IntArray | FloatArray, ends: tuple[int, int] | None) -> BoolArray:
    return np.zeros(values.size, dtype=bool) if ends is None else (values >= ends[0]) & (values <= ends[1])


def predict_schedules(
    model: Model,
    schedules: Sequence[Schedule],
    *,
    pair: str | None = None,
    sm_clock_mhz: float | None = None,
    compiled: bool | None = None,
) -> list[PredictedSchedule]:
    """Predict schedules with a model.

    Raises
    ------
    UsageError
        The model has no such pair or flavour, or a schedule has more producers than its GPU has SMs.
    """
    pairs = _pairs(model, schedules, pair)
    entries: dict[tuple[int, int, int], tuple[float, tuple[str, ...]]] = {}
    notes = []
    for schedule, found in zip(schedules, pairs, strict=True):
        key = (id(found), schedule.producer_count, schedule.warps)
        if key not in entries:
            require_sms(model, found, schedule.producer_count)
            entries[key] = _t0_note(found, *key[1:])
        fits, said = entries[key]
        notes.append(said if any(b.bytes > fits for b in schedule.bursts) else ())
    return _predict_all(model, schedules, pairs, sm_clock_mhz, notes=notes, compiled=compiled)


def _t0_note(pair: PairModel, producers: int, warps: int) -> tuple[float, tuple[str, ...]]:
    """Return Q per SM, and what to say of T0 of a larger burst, which was not measured: where it was."""
    entry = pair.find(producers, warps) or headline_entry(pair)
    fits = None if entry is None else entry.capacity_bytes_per_producer.value
    if entry is None or fits is None:
        return math.inf, ()
    return fits, (f"T0 of bursts above Q, {fits / 1e3:.3g} kB per SM, is extrapolated; the fit has it at {t0_at(entry)} per SM",)
