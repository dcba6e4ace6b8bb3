"""The issue law of a flavour: its constants fitted to bursts of one SM that nothing held back.

Those of st.v4 stand in `IssueLaw` as they were read off several nodes, with one compiler. Every other flavour leaves the same loop at
another pace: its own constants are fitted with a weak pull towards those, so that a constant which no burst shows keeps its value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import DataError
from xstage_bench.flavour import FLAVOURS
from xstage_bench.model.node.data import Measured
from xstage_bench.model.node.issue import QUEUE_WARPS, SUB_PARTITIONS, IssueLaw, free_cycles

FloatArray = NDArray[np.float64]
#: One SM has more than this outstanding before its own drain holds it back.
FREE_BYTES = 24576
#: Operations that wait for the engine of bulk copies (H200), by `QUEUE_WARPS`; refined where one SM alone fills the queue.
QUEUE_OPERATIONS = (4.0, 6.0, 8.0, 6.0)
SM_BYTES_PER_CYCLE = 25.6  # what one SM drains, to part a stalled store's interval from that of a free one
_PULL = 0.02  # weight of the pull towards the start, against log residuals
_ROBUST = 0.02
_MIN_POINTS = 6
_LARGE_BYTES = 4096
_STALLED, _DEEP = 1.3, 2.5
_MOST_CYCLES = 190  # of one operation: beyond, operations wait for each other
_STORE = (
    "base",
    "port_base",
    "port_cycles",
    "round_base",
    "round_cycles",
    "tail_base",
    "tail_cycles",
    "tail_after_loop",
    "partition_base",
    "partition_tail",
    "uneven_cycles",
    "several_cycles",
)
_BULK = ("base", "several_cycles", "round_base", "round_cycles")


def start_laws(flavour: str) -> list[tuple[IssueLaw, float]]:
    """Return what fits start from: laws, each with one warp's interval between its operations in cycles."""
    known = FLAVOURS[flavour]
    law = IssueLaw(store_bytes=float(known.warp_store_bytes), unroll=float(known.group))
    if known.bulk:
        law = replace(law, base=77.0, several_cycles=7.0, port_base=-1e6, port_cycles=0.0, round_base=120.0, round_cycles=13.0)
        return [(replace(law, queue_operations=QUEUE_OPERATIONS), 95.0)]
    # Whether many warps leave at the pace of the port or of the SM's drain decides which branch of the law a fit ends in.
    share = known.warp_store_bytes / 512
    port = replace(law, port_cycles=16 * share, round_cycles=max(3.0, 5 * share))
    drain = replace(law, port_base=-190.0, port_cycles=20 * share, round_base=130.0, round_cycles=max(2.1, 5 * share))
    # Whether the stamp overtakes the last store of a tail is the compiler's doing (docs/method.md); the bursts show which it is.
    return [(replace(x, tail_unheld=n), pace) for x, pace in ((port, 19.0), (drain, 14.0)) for n in (0.0, 1.0)]


def fit_issue(data: Measured, flavour: str) -> tuple[IssueLaw, float]:
    """Fit a flavour's issue law.

    Parameters
    ----------
    data : Measured
        Isolated bursts of one SM are used: of stores up to 24 KiB, of bulk copies as many as may be queued.
    flavour : str

    Returns
    -------
    law : IssueLaw
    store_cycles : float
        One warp's interval between its own operations.

    Raises
    ------
    DataError
        Too few bursts, or operations that wait for each other, so that no such law holds (a release before each store).
    """
    producers = np.array([s.producer_count for s in data.schedules])
    issue = data.issue_cycles[data.first[:-1]]
    size = np.array([s.bursts[0].bytes for s in data.schedules], dtype=np.float64)
    alone = data.isolated & (producers == 1) & (size > 0) & np.isfinite(issue) & (issue > 0)
    warps = np.array([s.warps for s in data.schedules], dtype=np.float64)[alone]
    size, issue = size[alone], issue[alone]
    found: list[tuple[float, IssueLaw, float]] = []
    for law, pace in start_laws(flavour):
        if FLAVOURS[flavour].bulk:
            # What may be queued and at most one more for each warp: the engine takes the first while the others are started.
            free = size <= np.where(warps <= SUB_PARTITIONS, law.queue_bytes(warps), FREE_BYTES / 3)
        else:
            free = size <= FREE_BYTES
        if free.sum() < _MIN_POINTS:
            raise DataError(f"{int(free.sum())} bursts of {flavour} by one SM alone", "measure the probe flavour_issue")
        found.append(_fit(law, pace, warps[free], size[free], issue[free], _BULK if FLAVOURS[flavour].bulk else _STORE))
    _, law, cycles = min(found, key=lambda f: f[0])
    if cycles > _MOST_CYCLES:
        raise DataError(
            f"{flavour}: {cycles:.0f} cycles for each operation of one warp",
            "its operations wait for each other, so no issue law holds; use the Burst-Gap law",
        )
    if law.queue_operations:
        law = _with_queue(law, cycles, data)
    return _with_turnaround(law, cycles, data), cycles


def _fit(
    law: IssueLaw, pace: float, warps: FloatArray, size: FloatArray, issue: FloatArray, names: Sequence[str]
) -> tuple[float, IssueLaw, float]:
    """Fit the pace and the constants of these names from one start; return the cost, the law and the pace."""
    from scipy.optimize import least_squares

    first = np.array([pace, *(getattr(law, n) for n in names)])
    scale = np.maximum(np.abs(first), 5.0)
    count = size / (warps * law.store_bytes)

    def law_at(x: FloatArray) -> tuple[IssueLaw, float]:
        values = first + x * scale
        changes: dict[str, Any] = dict(zip(names, map(float, values[1:]), strict=True))
        return replace(law, **changes), float(values[0])

    def residual(x: FloatArray) -> FloatArray:
        own, cycles = law_at(x)
        predicted = free_cycles(own, cycles, warps, count, fresh=True)
        return np.concatenate([np.log(np.maximum(predicted, 1.0) / issue), _PULL * x])

    solved = least_squares(residual, np.zeros(first.size), loss="soft_l1", f_scale=_ROBUST, diff_step=1e-3, x_scale=0.3)
    return float(solved.cost), *law_at(solved.x)


def _with_turnaround(law: IssueLaw, cycles: float, data: Measured) -> IssueLaw:
    """Return the law with the least gap, what a stall prolongs it by, and what an asked gap is longer by, as free-running trains show them.

    Notes
    -----
    The thread that starts bulk copies does not queue behind them, so a stall prolongs nothing; narrow stores leave many instructions
    before the stamp. Without trains the constants stay.
    """
    owner = data.owner
    follows = (data.burst > 0) & np.array([s.start == "free" for s in data.schedules])[owner]
    at = np.flatnonzero(follows)
    if not at.size:
        return law
    per_cycle = 1e3 / data.sm_clock_mhz
    gap = (data.start_ns[at] - data.start_ns[at - 1]) / per_cycle - data.issue_cycles[at - 1]
    asked = np.array([b.gap_cycles for s in data.schedules for b in s.bursts], dtype=np.float64)[at]
    size = np.array([b.bytes for s in data.schedules for b in s.bursts], dtype=np.float64)[at - 1]
    warps = np.array([s.warps for s in data.schedules], dtype=np.float64)[owner][at]
    count = size / law.store_bytes
    before, free = data.issue_cycles[at - 1], free_cycles(law, cycles, warps, count / warps, fresh=False)
    at_once = (asked == 0) & np.isfinite(gap)
    calm, held = at_once & (before < _STALLED * free), at_once & (before > 3 * _STALLED * free)
    longer = np.isfinite(gap) & (asked > 2000) & (before < _STALLED * free)
    turnaround = float(np.median(gap[calm])) if calm.any() else law.turnaround
    overhead = float(np.median(gap[longer] - asked[longer])) if longer.any() else law.gap_overhead
    share = law.stall_turnaround
    if held.any():
        interval = before[held] / count[held] - law.store_bytes / SM_BYTES_PER_CYCLE
        share = max(0.0, float(np.median((gap[held] - turnaround) / interval)))
    return replace(law, turnaround=turnaround, gap_overhead=overhead, stall_turnaround=share)


def _with_queue(law: IssueLaw, cycles: float, data: Measured) -> IssueLaw:
    """Return the law with the queue of bulk copies, as deep stalls show it: of one SM alone, and of the most that were measured.

    Notes
    -----
    What is held at the end of issue is the size less what has drained, at the rate of the largest bursts. With the link busy some of it is
    under way: so much less waits with other warp counts than with four.
    """
    alone, rate = _held(law, cycles, data, 1, near=3, above=_STALLED)
    engine = tuple(alone.get(w, kept) for w, kept in zip(QUEUE_WARPS, law.queue_operations, strict=True))
    most = max((s.producer_count for s in data.schedules), default=1)
    full = _held(law, cycles, data, most, near=1, above=_DEEP)[0]
    queue = engine
    if law.store_bytes >= _LARGE_BYTES and 4 in full:  # of small ones, as many are under way as wait
        way = full[4] - engine[2]
        queue = tuple(max(full.get(w, e + way), w) - way for w, e in zip(QUEUE_WARPS, engine, strict=True))
    return replace(law, queue_operations=queue, engine_operations=engine, engine_cycles=law.store_bytes / rate)


def _held(law: IssueLaw, cycles: float, data: Measured, producers: int, near: int, above: float) -> tuple[dict[int, float], float]:
    """Return how many operations each SM of so many holds at the end of issue, by warps, and the rate of each SM in bytes per cycle.

    From the `near` shortest bursts that take `above` times as long as free ones: longer ones are served more and more unequally.
    """
    issue = data.issue_cycles[data.first[:-1]]
    size = np.array([s.bursts[0].bytes for s in data.schedules], dtype=np.float64)
    warps = np.array([s.warps for s in data.schedules])
    right = data.isolated & np.array([s.producer_count == producers for s in data.schedules]) & np.isfinite(issue) & (size > 0)
    stalled = right & (issue > above * free_cycles(law, cycles, warps, size / (warps * law.store_bytes), fresh=True))
    slopes = []
    for w in QUEUE_WARPS:
        mine = np.flatnonzero(stalled & (warps == w))
        mine = mine[np.argsort(size[mine])]
        if mine.size >= 2:
            slopes.append((size[mine[-1]] - size[mine[0]]) / (issue[mine[-1]] - issue[mine[0]]))
    if not slopes:
        return {}, SM_BYTES_PER_CYCLE
    rate = float(np.median(slopes))
    found = {}
    for w in QUEUE_WARPS:
        mine = np.flatnonzero(stalled & (warps == w))
        shortest = mine[np.argsort(size[mine])][:near]
        if shortest.size:
            found[w] = float(np.median((size[shortest] - rate * issue[shortest]) / law.store_bytes))
    return found, rate
