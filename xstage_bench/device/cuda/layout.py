"""Schedules to the arrays that ``cuda/burst.cu`` reads, and what it writes to Traces. Pure numpy: tested without a GPU.

The dtypes mirror the structs of ``cuda/burst.cu`` and ``cuda/verify.cu``; a test compiles the sources and compares the sizes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.variant import MAX_BURSTS_BULK, Variant, check_shared_memory, variant_of
from xstage_bench.errors import UsageError
from xstage_bench.schedule.bursts import HOST, MAX_BURSTS_ON_DEVICE, START_RULES, Schedule, require_meeting
from xstage_bench.schedule.completion import completion_of
from xstage_bench.schedule.device import Execution
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.trace import Status, Trace

ITEM = np.dtype([(n, "<u4") for n in ("first_burst", "bursts", "warps", "start_rule", "producers", "set", "tag", "result")])
BURST = np.dtype([(n, "<u4") for n in ("stores", "gap_cycles", "start_ns", "first_group")])
STAMP = np.dtype([(n, "<u4") for n in ("start", "issued", "end", "end_ns", "reusable", "completed", "drained")])
VERDICT = np.dtype(
    [(n, "<u4") for n in ("state", "mismatches", "offset", "expected", "found", "elsewhere")] + [("clock", "<u8"), ("timer_ns", "<u8")]
)
CONTROL = np.dtype([(n, "<u4") for n in ("arrived", "released", "abort", "pad")] + [("start_ns", "<u8", 2), ("flags", "<u4", 256)])
FINDING = np.dtype([("mismatches", "<u8"), ("offset", "<u8"), ("expected", "<u4"), ("found", "<u4")])

WINDOW_BYTES = 256 * 1024  # destination bytes of one producer; longer bursts wrap, so that 132 producers touch 34 MB and no TLB limit
TIMELINE_STORES = 128
STATE_DONE, STATE_TIMED_OUT = 1, 2
ELSEWHERE = -2  # in `producer_of`: the idle SM that executes a completion for others

MAX_PRODUCERS = 256
MAX_ITEMS = 2048
MAX_BURSTS = 32768
MAX_SETS = 256
MAX_STAMPS = 2_000_000
MAX_BATCH_S = 0.25  # a launch is short, so that little is lost with it and the watchdog need not wait long

_EXACT_BF16_HITS = 120  # of at most 2.0 each: bf16 holds whole numbers to 256

#: For batching and watchdogs only, never shown: far below any link we know, and the time from one item to the next.
_SLOW_GB_PER_S = 100.0
_SLOW_HOST_GB_PER_S = 8.0
_ITEM_S = 30e-6


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One launch, of one variant. `producer_of` has a row per producer set and a column per smid: its index, -1 or `ELSEWHERE`."""

    variant: Variant
    executions: tuple[Execution, ...]
    smids: tuple[NDArray[np.int64], ...]
    items: NDArray[Any]
    bursts: NDArray[Any]
    producer_of: NDArray[np.int16]
    stamps: int
    expected_s: float


def spread_evenly(producers: int, sms: int) -> NDArray[np.int16]:
    """Return which producer each SM is, -1 for none: producers spread evenly over the smids of a GPU that has all of them."""
    table = np.full(max(MAX_PRODUCERS, sms), -1, dtype=np.int16)
    table[np.arange(producers) * sms // producers] = np.arange(producers)
    return table


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
        Too many bursts, a gap or start time over 32 bits, producers that the GPU lacks, or warps that do not meet.
    """
    require_meeting(schedule)
    flavour = FLAVOURS[schedule.flavour]
    most = MAX_BURSTS_BULK if flavour.bulk else MAX_BURSTS_ON_DEVICE
    if len(schedule.bursts) > most:
        raise UsageError(
            f"{len(schedule.bursts)} bursts in one schedule; a GPU takes {most} at a time",
            "split the schedule, or use predict, which has no limit",
        )
    for i, b in enumerate(schedule.bursts):
        if b.gap_cycles > 2_000_000_000 or b.start_ns > 1_000_000_000:
            raise UsageError(f"burst {i}: a gap or start time of over a second", "the device's stamps hold 2 s; shorten the schedule")
    if schedule.start == "free" and sum(b.gap_cycles for b in schedule.bursts) > 2_000_000_000:
        raise UsageError("the gaps of this schedule add up to over a second", "the device's stamps hold 2 s; shorten the schedule")
    if schedule.smids(available).size > MAX_PRODUCERS:
        raise UsageError(f"{schedule.producer_count} producers; the instrument has room for {MAX_PRODUCERS}", "use fewer producers")
    if completion_of(schedule.completion).who == "sm" and schedule.producer_count >= len(available):
        raise UsageError(
            f"completion '{schedule.completion}' needs an SM that does not store", f"use at most {len(available) - 1} producers"
        )
    check_shared_memory(schedule)
    if WINDOW_BYTES // schedule.warps < 2 * flavour.group * flavour.warp_store_bytes:
        raise UsageError(f"{schedule.warps} warps of {schedule.flavour} do not fit into a producer's window", "use fewer warps")
    if flavour.element == "bf16x2" and _hits(schedule) > _EXACT_BF16_HITS:
        raise UsageError(
            f"more than {_EXACT_BF16_HITS} additions to one place of {schedule.flavour}: its sums are not exact", "use smaller bursts"
        )


def _hits(schedule: Schedule) -> int:
    """Additions to one place at most, between two zeroings: a long burst wraps around in its window."""
    sizes = [b.bytes for b in schedule.bursts]
    return 1 + (max(sizes) if schedule.start == "isolated" else sum(sizes)) // (WINDOW_BYTES // 2)


def batches(executions: Sequence[Execution], available: Sequence[int], sm_clock_mhz: float, first_tag: int) -> Iterator[Batch]:
    """Pack executions, in order, into launches that respect the device's preallocated buffers.

    Parameters
    ----------
    executions : sequence of Execution
        All with the same source and destination; a launch has one variant. One with `timeline` becomes a launch of its own.
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
    variants: dict[tuple[str, str, str], Variant] = {}

    def known(s: Schedule) -> Variant:
        name = (s.flavour, s.layout, s.completion)
        return variants[name] if name in variants else variants.setdefault(name, variant_of(s))

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
            or known(e.schedule) != known(pending[-1].schedule)
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
        idle = np.setdiff1d(np.asarray(available), chosen)
        row[idle[idle.size // 2 : idle.size // 2 + 1]] = ELSEWHERE
        row[chosen] = np.arange(chosen.size)
    return Batch(variant_of(executions[0].schedule), tuple(executions), tuple(smids), items, np.concatenate(packed), table, stamps, seconds)


def _pack_bursts(s: Schedule) -> NDArray[Any]:
    stores = s.stores_per_warp()
    groups = -(-stores // FLAVOURS[s.flavour].group)
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
    fields = {name: stamps[name].astype(np.float64) for name in STAMP.names or ()}
    for i, e in enumerate(batch.executions):
        s, item = e.schedule, batch.items[i]
        n, k = int(item["bursts"]), int(item["producers"])
        at = slice(int(item["result"]), int(item["result"]) + n * k)
        start, issued, end, end_ns, reusable, completed, drained = (fields[f][at].reshape(n, k) for f in STAMP.names or ())
        issue = end - start
        gap = np.full((n, k), np.nan)
        # Only the last burst of a segment is waited for; an isolated burst is a segment of its own.
        last = slice(None) if s.start == "isolated" else slice(-1, None)
        if s.start != "isolated":
            gap[1:] = start[1:] - end[:-1]
        drain = _after(end, drained, last)
        if completion_of(s.completion).who == "sm":
            drain = np.full((n, k), np.nan)
            drain[-1] = verdicts[i]["elsewhere"]
        bulk = batch.variant.flavour.bulk
        status, detail = _status(e, batch, verdicts[i], float(clocks[i]), level_mhz)
        lines = None
        if e.timeline and timeline is not None:
            stores = min(int(s.stores_per_warp()[0]), TIMELINE_STORES)
            lines = timeline[:k, : s.warps, :stores].astype(np.float64)
        # Whole ns: the timer's tick is coarser, and a fraction would only fill the files.
        start_ns = np.rint(end_ns - issue / clocks[i] * 1e3)
        yield Trace(
            s,
            batch.smids[i],
            issue,
            gap,
            start_ns,
            end_ns,
            drain,
            float(clocks[i]),
            status,
            detail,
            lines,
            issued_cycles=issued - start,
            reusable_cycles=_after(end, reusable, last) if bulk else None,
            completed_cycles=_after(end, completed, last) if bulk else None,
        )


def _after(end: NDArray[np.float64], stamp: NDArray[np.float64], rows: slice) -> NDArray[np.float64]:
    """Cycles from the end of issue to `stamp` in these rows; NaN in the others."""
    out = np.full(end.shape, np.nan)
    out[rows] = stamp[rows] - end[rows]
    return out


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
