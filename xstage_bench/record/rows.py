"""From executions and their traces to columns of numpy arrays, in batches: tens of thousands of executions a minute must pass."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xstage_bench.record.columns import MEASURED, PER_PRODUCER, recorded_precision
from xstage_bench.schedule.bursts import Schedule
from xstage_bench.schedule.device import Execution
from xstage_bench.schedule.trace import OPTIONAL, Trace

Columns = dict[str, NDArray[Any]]


class Recorded(NamedTuple):
    """One execution with its trace and its place in the run."""

    probe: str
    process: int
    order: int
    execution: Execution
    trace: Trace
    keep_producers: bool


def summaries(traces: Sequence[Trace]) -> list[dict[str, NDArray[Any]]]:
    """Reduce many traces over producers, as `Trace.summary` does one: those of one shape together, which is ten times faster.

    Returns
    -------
    list of dict, in the order of `traces`
        The columns `MEASURED`, each of shape (N,).
    """
    found: list[dict[str, NDArray[Any]]] = [{} for _ in traces]
    groups: dict[tuple[int, ...], list[int]] = defaultdict(list)  # by shape, and by which optional stamps there are
    for i, trace in enumerate(traces):
        if trace.recorded is not None:
            found[i] = trace.summary()
        else:
            groups[*trace.issue_cycles.shape, *(getattr(trace, name) is None for name in OPTIONAL)].append(i)
    for (bursts, producers, *_), members in groups.items():
        stacked = _stack([traces[i] for i in members], bursts, producers).summary()
        for j, i in enumerate(members):
            found[i] = {name: values[j * bursts : (j + 1) * bursts] for name, values in stacked.items()}
    return found


def _stack(traces: Sequence[Trace], bursts: int, producers: int) -> Trace:
    # The reduction is per row, so bursts of many executions under each other are reduced exactly as one trace's are.
    def joined(name: str) -> NDArray[np.float64]:
        out = np.empty((len(traces) * bursts, producers))
        for j, trace in enumerate(traces):
            out[j * bursts : (j + 1) * bursts] = getattr(trace, name)
        return out

    stacked = Trace(
        schedule=traces[0].schedule,
        smids=traces[0].smids,
        issue_cycles=joined("issue_cycles"),
        gap_cycles=joined("gap_cycles"),
        start_ns=joined("start_ns"),
        end_ns=joined("end_ns"),
        drain_cycles=joined("drain_cycles"),
        sm_clock_mhz=0.0,
    )
    optional: dict[str, Any] = {name: joined(name) for name in OPTIONAL if getattr(traces[0], name) is not None}
    return replace(stacked, **optional)


def joined(pieces: Sequence[Columns]) -> Columns:
    """Put tables of the same columns under each other."""
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def sample_columns(batch: Sequence[Recorded]) -> Columns:
    """Return the columns `SAMPLES` of `batch`: one row per execution and burst; NaN where null."""
    asked = _asked_of_each(batch)
    lengths = np.array([a.bytes.size for a in asked])
    first = np.cumsum(lengths) - lengths
    columns: Columns = {name: np.repeat(values, lengths) for name, values in {**_identity(batch, asked), **_description(batch)}.items()}
    columns["burst"] = np.arange(int(lengths.sum())) - np.repeat(first, lengths)
    columns["bursts"] = np.repeat(lengths, lengths)
    columns["bytes"] = np.concatenate([a.bytes for a in asked])
    columns["gap_cycles"] = np.concatenate([a.gap_cycles for a in asked])
    columns["start_ns"] = np.concatenate([a.start_ns for a in asked])
    reduced = summaries([r.trace for r in batch])
    for name in MEASURED:
        columns[name] = recorded_precision(np.concatenate([s[name] for s in reduced]).astype(np.float64))
    return columns


def producer_columns(batch: Sequence[Recorded]) -> Columns | None:
    """Return the columns `PRODUCERS` of those of `batch` that keep them: one row per execution, burst and producer; None when none does.

    A trace without any per-producer number (the replay of a run that had not kept them) gives no rows.
    """
    kept = [r for r in batch if r.keep_producers and not np.isnan(r.trace.start_ns).all()]
    if not kept:
        return None
    shapes = [r.trace.issue_cycles.shape for r in kept]
    sizes = np.array([n * k for n, k in shapes])
    columns: Columns = {name: np.repeat(values, sizes) for name, values in _identity(kept, _asked_of_each(kept)).items()}
    columns["order"] = np.repeat(np.array([r.order for r in kept]), sizes)
    columns["burst"] = np.concatenate([np.repeat(np.arange(n), k) for n, k in shapes])
    columns["producer"] = np.concatenate([np.tile(np.arange(k), n) for n, k in shapes])
    columns["smid"] = np.concatenate([np.tile(r.trace.smids, n) for r, (n, _) in zip(kept, shapes, strict=True)])
    for name in PER_PRODUCER:
        columns[name] = recorded_precision(np.concatenate([getattr(r.trace, name).ravel() for r in kept]).astype(np.float64))
    return columns


def timeline_columns(recorded: Recorded) -> Columns:
    """Return the columns `TRACES` of one exemplar: one row per producer, warp and store."""
    trace = recorded.trace
    cycles = trace.timeline_cycles
    if cycles is None:
        raise ValueError("this trace has no timeline")
    producers, warps, stores = cycles.shape
    size = np.array([cycles.size])
    columns: Columns = {name: np.repeat(values, size) for name, values in _identity([recorded], _asked_of_each([recorded])).items()}
    columns["smid"] = np.repeat(trace.smids, warps * stores)
    columns["warp"] = np.tile(np.repeat(np.arange(warps), stores), producers)
    columns["store"] = np.tile(np.arange(stores), producers * warps)
    columns["cycles"] = recorded_precision(cycles.ravel().astype(np.float64))
    return columns


class _Asked(NamedTuple):
    key: str
    bytes: NDArray[np.int64]
    gap_cycles: NDArray[np.float64]
    start_ns: NDArray[np.float64]


def _asked_of_each(batch: Sequence[Recorded]) -> list[_Asked]:
    # Repetitions share their Schedule object, whose key costs a hash of all its bursts.
    known: dict[int, _Asked] = {}
    out = []
    for recorded in batch:
        schedule = recorded.execution.schedule
        asked = known.get(id(schedule))
        if asked is None:
            asked = known[id(schedule)] = _asked(schedule)
        out.append(asked)
    return out


def _asked(s: Schedule) -> _Asked:
    gap = np.full(len(s.bursts), np.nan)
    start = np.full(len(s.bursts), np.nan)
    if s.start == "free":
        gap[1:] = [b.gap_cycles for b in s.bursts[1:]]
    if s.start == "timed":
        start[:] = [b.start_ns for b in s.bursts]
    return _Asked(s.key(), np.array([b.bytes for b in s.bursts], dtype=np.int64), gap, start)


def _identity(batch: Sequence[Recorded], asked: Sequence[_Asked]) -> dict[str, NDArray[Any]]:
    schedules = [r.execution.schedule for r in batch]
    return {
        "schedule": np.array([a.key for a in asked], dtype=object),
        "source": np.array([s.source for s in schedules]),
        "destination": np.array([s.destination for s in schedules]),
        "process": np.array([r.process for r in batch]),
        "repetition": np.array([r.execution.repetition for r in batch]),
    }


def _description(batch: Sequence[Recorded]) -> dict[str, NDArray[Any]]:
    schedules = [r.execution.schedule for r in batch]
    clock = np.array([r.trace.sm_clock_mhz for r in batch], dtype=np.float64)
    return {
        "probe": np.array([r.probe for r in batch], dtype=object),
        "kind": np.array([r.execution.kind for r in batch], dtype=object),
        "flavour": np.array([s.flavour for s in schedules], dtype=object),
        "layout": np.array([s.layout for s in schedules], dtype=object),
        "completion": np.array([s.completion for s in schedules], dtype=object),
        "start": np.array([s.start for s in schedules], dtype=object),
        "producers": np.array([s.producer_count for s in schedules]),
        "producer_set": np.array([s.producer_set for s in schedules], dtype=object),
        "warps": np.array([s.warps for s in schedules]),
        "order": np.array([r.order for r in batch]),
        "sm_clock_mhz": recorded_precision(clock),
        "status": np.array([r.trace.status for r in batch], dtype=object),
        "detail": np.array([r.trace.detail or None for r in batch], dtype=object),
    }
