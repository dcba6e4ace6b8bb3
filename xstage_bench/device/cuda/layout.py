"""Schedules to the arrays that ``cuda/burst.cu`` reads, and what it writes to Traces. Pure numpy: tested without a GPU.

The dtypes mirror the structs of ``cuda/burst.cu`` and ``cuda/verify.cu``; a test compiles the sources and compares the sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device import Execution
from xstage_bench.errors import UsageError
from xstage_bench.schedule import HOST, MAX_BURSTS_ON_DEVICE, START_RULES, Schedule
from xstage_bench.trace import Status, Trace

ITEM = np.dtype([(n, "<u4") for n in ("first_burst", "bursts", "warps", "start_rule", "producers", "set", "tag", "result")])
BURST = np.dtype([(n, "<u4") for n in ("stores", "gap_cycles", "start_ns", "first_group")])
STAMP = np.dtype([(n, "<u4") for n in ("start", "end", "end_ns", "drained")])
VERDICT = np.dtype(
    [(n, "<u4") for n in ("state", "mismatches", "offset", "expected", "found", "pad")] + [("clock", "<u8"), ("timer_ns", "<u8")]
)
CONTROL = np.dtype([(n, "<u4") for n in ("arrived", "released", "abort", "pad")] + [("start_ns", "<u8", 2)])
FINDING = np.dtype([("mismatches", "<u8"), ("offset", "<u8"), ("expected", "<u4"), ("found", "<u4")])

GROUP = 4  # warp-stores per unrolled group, as in cuda/pattern.cuh
WINDOW_BYTES = 256 * 1024  # destination bytes of one producer; longer bursts wrap, so that 132 producers touch 34 MB and no TLB limit
TIMELINE_STORES = 128
STATE_DONE, STATE_TIMED_OUT = 1, 2

MAX_PRODUCERS = 256
MAX_ITEMS = 2048
MAX_BURSTS = 32768
MAX_SETS = 256
MAX_STAMPS = 2_000_000
MAX_BATCH_S = 0.25  # a launch is short, so that little is lost with it and the watchdog need not wait long

#: For batching and watchdogs only, never shown: far below any link we know, and the time from one item to the next.
_SLOW_GB_PER_S = 100.0
_SLOW_HOST_GB_PER_S = 8.0
_ITEM_S = 30e-6


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One launch. `producer_of` has a row per producer set and a column per smid: the producer's index, or -1."""

    executions: tuple[Execution, ...]
    smids: tuple[NDArray[np.int64], ...]
    items: NDArray[Any]
    bursts: NDArray[Any]
    producer_of: NDArray[np.int16]
    stamps: int
    expected_s: float


def duration_s(schedule: Schedule, sm_clock_mhz: float) -> float:
    """Return an upper estimate of the time one execution takes on the device, read-back included."""
    injected = sum(b.bytes for b in schedule.bursts) * schedule.producer_count
    seconds = 2 * injected / ((_SLOW_HOST_GB_PER_S if schedule.destination == HOST else _SLOW_GB_PER_S) * 1e9) + _ITEM_S
    if schedule.start == "free":
        seconds += sum(b.gap_cycles for b in schedule.bursts[1:]) / (sm_clock_mhz * 1e6)
    elif schedule.start == "timed":
        seconds += schedule.bursts[-1].start_ns * 1e-9
    else:
        seconds += _ITEM_S * len(schedule.bursts)
    return seconds


def check(schedule: Schedule, available: Sequence[int]) -> None:
    """Refuse what the instrument cannot execute, before anything is launched.

    Raises
    ------
    UsageError
        Too many bursts, a gap or start time over 32 bits, or producers that the GPU lacks.
    """
    if len(schedule.bursts) > MAX_BURSTS_ON_DEVICE:
        raise UsageError(
            f"{len(schedule.bursts)} bursts in one schedule; a GPU takes {MAX_BURSTS_ON_DEVICE} at a time",
            "split the schedule, or use predict, which has no limit",
        )
    for i, b in enumerate(schedule.bursts):
        if b.gap_cycles > 2_000_000_000 or b.start_ns > 1_000_000_000:
            raise UsageError(f"burst {i}: a gap or start time of over a second", "the device's stamps hold 2 s; shorten the schedule")
    if schedule.start == "free" and sum(b.gap_cycles for b in schedule.bursts) > 2_000_000_000:
        raise UsageError("the gaps of this schedule add up to over a second", "the device's stamps hold 2 s; shorten the schedule")
    if schedule.smids(available).size > MAX_PRODUCERS:
        raise UsageError(f"{schedule.producer_count} producers; the instrument has room for {MAX_PRODUCERS}", "use fewer producers")


def batches(executions: Sequence[Execution], available: Sequence[int], sm_clock_mhz: float, first_tag: int) -> Iterator[Batch]:
    """Pack executions, in order, into launches that respect the device's preallocated buffers.

    Parameters
    ----------
    executions : sequence of Execution
        All with the same source and destination. One with `timeline` becomes a launch of its own.
    available : sequence of int
        The source's smids.
    sm_clock_mhz : float
        For the duration estimate.
    first_tag : int
        Tags count up from here; each item's stored values differ from those of all items before.
    """
    pending: list[Execution] = []
    bursts = stamps = 0
    seconds = 0.0
    sets: set[int | tuple[int, ...]] = set()
    tag = first_tag

    def full(e: Execution) -> bool:
        n, k = len(e.schedule.bursts), e.schedule.producer_count
        return (
            len(pending) >= MAX_ITEMS
            or bursts + n > MAX_BURSTS
            or stamps + n * k > MAX_STAMPS
            or seconds > MAX_BATCH_S
            or (len(sets) >= MAX_SETS and e.schedule.producers not in sets)
            or e.timeline
            or pending[-1].timeline
        )

    for e in executions:
        if pending and full(e):
            yield _pack(pending, available, seconds, tag)
            tag += len(pending)
            pending, bursts, stamps, seconds, sets = [], 0, 0, 0.0, set()
        pending.append(e)
        bursts += len(e.schedule.bursts)
        stamps += len(e.schedule.bursts) * e.schedule.producer_count
        seconds += duration_s(e.schedule, sm_clock_mhz)
        sets.add(e.schedule.producers)
    if pending:
        yield _pack(pending, available, seconds, tag)


def _pack(executions: list[Execution], available: Sequence[int], seconds: float, first_tag: int) -> Batch:
    sets: dict[int | tuple[int, ...], int] = {}
    resolved: list[NDArray[np.int64]] = []
    known: dict[Schedule, tuple[int, int]] = {}
    packed: list[NDArray[Any]] = []
    items = np.zeros(len(executions), ITEM)
    smids = []
    offset = stamps = 0
    for i, e in enumerate(executions):
        s = e.schedule
        if s.producers not in sets:
            sets[s.producers] = len(sets)
            resolved.append(s.smids(available))
        index = sets[s.producers]
        if s not in known:
            known[s] = (offset, len(s.bursts))
            packed.append(_pack_bursts(s))
            offset += len(s.bursts)
        first, count = known[s]
        # Odd multiplier: tags of successive items are far apart, so that their running store numbers do not meet.
        tag = (first_tag + i + 1) * 0x9E3779B1 & 0xFFFFFFFF
        items[i] = (first, count, s.warps, START_RULES.index(s.start), s.producer_count, index, tag, stamps)
        smids.append(resolved[index])
        stamps += count * s.producer_count
    table = np.full((len(sets), max(available) + 1), -1, dtype=np.int16)
    for row, chosen in zip(table, resolved, strict=True):
        row[chosen] = np.arange(chosen.size)
    return Batch(tuple(executions), tuple(smids), items, np.concatenate(packed), table, stamps, seconds)


def _pack_bursts(s: Schedule) -> NDArray[Any]:
    stores = s.stores_per_warp()
    groups = -(-stores // GROUP)
    out = np.zeros(len(s.bursts), BURST)
    out["stores"] = stores
    out["gap_cycles"] = [b.gap_cycles for b in s.bursts]
    out["start_ns"] = [b.start_ns for b in s.bursts]
    out["first_group"] = np.concatenate(([0], np.cumsum(groups)[:-1]))
    return out


def clocks_mhz(verdicts: NDArray[Any], count: int, reach: int = 8) -> NDArray[np.float64]:
    """SM clock around each item, from the stamps at the starts of the items `reach` before and after it.

    Parameters
    ----------
    verdicts : structured ndarray, shape (count + 1,)
        The last one holds the stamps at the end of the launch.

    Returns
    -------
    ndarray of float, shape (count,)
    """
    at = np.arange(count)
    low, high = np.maximum(at - reach, 0), np.minimum(at + reach + 1, count)
    cycles = (verdicts["clock"][high] - verdicts["clock"][low]).astype(np.float64)
    ns = np.maximum((verdicts["timer_ns"][high] - verdicts["timer_ns"][low]).astype(np.float64), 1.0)
    return np.asarray(cycles / ns * 1e3)


def unpack(
    batch: Batch, stamps: NDArray[Any], verdicts: NDArray[Any], level_mhz: float, timeline: NDArray[np.uint32] | None = None
) -> Iterator[Trace]:
    """Turn what one launch wrote into Traces, in order.

    Parameters
    ----------
    batch : Batch
    stamps : structured ndarray of STAMP, shape (batch.stamps,)
    verdicts : structured ndarray of VERDICT, shape (items + 1,)
    level_mhz : float
        The run's own SM clock; executions more than 3 % below it are marked ``throttled``.
    timeline : ndarray of uint32, shape (producers, 16, TIMELINE_STORES), optional
    """
    clocks = clocks_mhz(verdicts, len(batch.executions))
    fields = {name: stamps[name].astype(np.float64) for name in ("start", "end", "end_ns", "drained")}
    for i, e in enumerate(batch.executions):
        s, item = e.schedule, batch.items[i]
        n, k = int(item["bursts"]), int(item["producers"])
        at = slice(int(item["result"]), int(item["result"]) + n * k)
        start, end, end_ns, drained = (fields[f][at].reshape(n, k) for f in ("start", "end", "end_ns", "drained"))
        issue = end - start
        gap = np.full((n, k), np.nan)
        drain = np.full((n, k), np.nan)
        if s.start == "isolated":
            drain = drained - end
        else:
            gap[1:] = start[1:] - end[:-1]
            drain[-1] = drained[-1] - end[-1]
        status, detail = _status(e, batch, verdicts[i], float(clocks[i]), level_mhz)
        lines = None
        if e.timeline and timeline is not None:
            stores = min(int(s.stores_per_warp()[0]), TIMELINE_STORES)
            lines = timeline[:k, : s.warps, :stores].astype(np.float64)
        # Whole ns: the timer's tick is coarser, and a fraction would only fill the files.
        start_ns = np.rint(end_ns - issue / clocks[i] * 1e3)
        yield Trace(s, batch.smids[i], issue, gap, start_ns, end_ns, drain, float(clocks[i]), status, detail, lines)


def _status(e: Execution, batch: Batch, verdict: Any, clock: float, level: float) -> tuple[Status, str]:
    if verdict["state"] != STATE_DONE:
        return "timeout", "a wait inside the kernel ended by its time-out"
    if verdict["mismatches"]:
        pair = f"pair {e.schedule.source}>{e.schedule.destination}"
        return "corrupt", (
            f"{pair}: {verdict['mismatches']} wrong 16-byte words, the first at offset {verdict['offset']}: "
            f"expected 0x{verdict['expected']:08x}, found 0x{verdict['found']:08x}"
        )
    if e.kind == "warmup":
        return "warmup", ""
    if clock < 0.97 * level:
        return "throttled", f"SM clock {clock:.0f} MHz, the run's level is {level:.0f} MHz"
    return "ok", ""
