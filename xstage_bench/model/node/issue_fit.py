"""The issue costs of a run: the table of T0, gaps and queues, read off bursts of one SM that nothing held back.

All of it is the instrument's, the SM's and the compiler's doing, so every run measures it (probe ``issue``; ``flavour_issue`` for other
flavours) and nothing is taken over from another GPU.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np

from xstage_bench.errors import DataError
from xstage_bench.model.arrays import FloatArray
from xstage_bench.model.estimate import Estimate, t_half_width, with_spread
from xstage_bench.model.node.data import MeasuredSchedules
from xstage_bench.model.node.issue import QUEUE_WARPS, SUB_PARTITIONS, IssueLaw, free_cycles
from xstage_bench.model.node.issue_table import IssueTable
from xstage_bench.schedule.flavour import FLAVOURS

#: Bytes that an SM holds before its own drain holds it back: of larger bursts T0 is extrapolated. Too large does no harm but to what is
#: called a stall: a burst costs the larger of T0 and its drain.
FREE_BYTES = 24576
#: Operations that wait for the engine of bulk copies (H200), by `QUEUE_WARPS`; refined where one SM alone fills the queue.
QUEUE_OPERATIONS = (4.0, 6.0, 8.0, 6.0)
SM_BYTES_PER_CYCLE = 25.6  # what one SM drains, to part a stalled store's interval from that of a free one; where no burst shows it
_MIN_POINTS = 6
_LARGE_BYTES = 4096
_STALLED, _DEEP = 1.3, 2.5
_MOST_CYCLES = 190  # of one operation: beyond, operations wait for each other
_APART_CYCLES = 4000  # bursts further apart than this find the stage as the first one did
_MANY_WARPS, _MANY_STORES = 8, 16  # where the SM's port is what holds a burst up


def fit_issue(data: MeasuredSchedules, flavour: str) -> tuple[IssueLaw, Estimate]:
    """Read the issue costs of a flavour off one SM alone.

    Parameters
    ----------
    data : MeasuredSchedules
        Bursts of one SM are used: isolated ones, and those of free trains whose gaps are long; trains of any number of SMs for the gaps.
    flavour : str

    Returns
    -------
    law : IssueLaw
        With a table.
    store_cycles : Estimate
        One warp's interval between its own operations.

    Raises
    ------
    DataError
        Too few bursts, or operations that wait for each other, so that no such law holds (a release before each store).
    """
    known = FLAVOURS[flavour]
    law = IssueLaw(store_bytes=float(known.warp_store_bytes), unroll=float(known.group))
    if known.bulk:
        law = replace(law, queue_operations=QUEUE_OPERATIONS)
    cells = _cells(data, law, bulk=known.bulk)
    if len(cells.first) < _MIN_POINTS:
        raise DataError(f"{len(cells.first)} bursts of {flavour} by one SM alone", "measure the probe issue, or flavour_issue")
    pace = _pace(cells, known.group)
    if pace.value is None or pace.value > _MOST_CYCLES:
        found = "no two burst lengths of one warp" if pace.value is None else f"{pace.value:.0f} cycles for each operation of one warp"
        raise DataError(f"{flavour}: {found}", "operations that wait for each other have no issue law; use the Burst-Gap law")
    law = replace(law, table=_table(cells, pace.value, known.group))
    if law.queue_operations:
        law = _with_queue(law, pace.value, data)
    return _with_gaps(law, pace.value, data), pace


class _Cells:
    """Issue times by (warps, stores): of first bursts each process's own, and of later ones all."""

    def __init__(self) -> None:
        self.first: dict[tuple[int, int], FloatArray] = {}
        self.later: dict[tuple[int, int], list[float]] = defaultdict(list)


def _cells(data: MeasuredSchedules, law: IssueLaw, *, bulk: bool) -> _Cells:
    out = _Cells()
    for i, schedule in enumerate(data.schedules):
        if schedule.producer_count != 1:
            continue
        w = schedule.warps
        # What may be queued and at most one more for each warp: the engine takes the first while the others are started.
        most = float(law.queue_bytes(w)) if bulk and w <= SUB_PARTITIONS else FREE_BYTES / 3 if bulk else FREE_BYTES
        for b, burst in enumerate(schedule.bursts):
            at = int(data.first[i]) + b
            if burst.bytes > most or not np.isfinite(data.issue_cycles[at]) or data.issue_cycles[at] <= 0:
                continue
            key = w, int(burst.bytes // (w * law.store_bytes))
            if schedule.start == "isolated" and b == 0:
                out.first[key] = data.by_process[:, at]
            elif schedule.start == "free" and b and burst.gap_cycles >= _APART_CYCLES and schedule.bursts[b - 1].bytes <= most:
                out.later[key].append(float(data.issue_cycles[at]))
    return out


def _pace(cells: _Cells, group: int) -> Estimate:
    """Return one warp's interval between its own operations: the slope over whole turns of the loop, by process."""
    lengths = [n for w, n in sorted(cells.first) if w == 1 and n and n % group == 0]
    if len(lengths) < 2:
        return Estimate.missing("fewer than two burst lengths of one warp")
    values = np.array([cells.first[1, n] for n in lengths])
    slopes = np.array([np.polyfit(lengths, v, 1)[0] for v in values.T if np.isfinite(v).all()])
    if not slopes.size:
        return Estimate.missing("no process measured every burst length of one warp")
    return with_spread(float(np.median(slopes)), slopes, "issue_mean")


def _table(cells: _Cells, pace: float, group: int) -> IssueTable:
    warps = tuple(sorted({w for w, _ in cells.first}))
    stores = tuple(sorted({n for _, n in cells.first}))

    def middle(values: FloatArray | list[float] | None) -> float | None:
        return None if values is None or not np.isfinite(values).any() else float(np.nanmedian(values))

    def half(values: FloatArray | None) -> float | None:
        return None if values is None else t_half_width(values[np.isfinite(values)])

    first = {key: middle(v) for key, v in cells.first.items()}
    steps = [
        (b - a) / ((m - n) * w)
        for w in warps
        if w >= _MANY_WARPS
        for n, m in pairwise(stores)
        if n * w >= _MANY_STORES and (a := first.get((w, n))) is not None and (b := first.get((w, m))) is not None
    ]
    return IssueTable(
        warps=warps,
        stores=stores,
        fresh=tuple(tuple(first.get((w, n)) for n in stores) for w in warps),
        following=tuple(tuple(middle(cells.later.get((w, n))) for n in stores) for w in warps),
        half_width=tuple(tuple(half(cells.first.get((w, n))) for n in stores) for w in warps),
        store_cycles=pace,
        port_cycles=float(np.median(steps)) if steps else pace / SUB_PARTITIONS,
        group=group,
    )


def _with_gaps(law: IssueLaw, cycles: float, data: MeasuredSchedules) -> IssueLaw:
    """Return the law with the least gap, what a stall prolongs it by, what an asked gap is longer by, and how late an aligned start is.

    Notes
    -----
    The least gap and what an asked one is longer by: of trains of one SM alone where there are some, since only of them is it sure that the
    stage was not full. What a stall adds: of all. Without trains the constants of `IssueLaw` stay.
    """
    owner = data.owner
    first = data.start_ns[data.first[:-1]]
    aligned = first[~data.isolated & np.isfinite(first)]
    law = replace(law, start_lag_ns=float(np.median(aligned))) if aligned.size else law
    follows = (data.burst > 0) & np.array([s.start == "free" for s in data.schedules])[owner]
    at = np.flatnonzero(follows)
    if not at.size:
        return law
    alone = np.array([s.producer_count == 1 for s in data.schedules])[owner][at]
    alone = alone if alone.any() else ~alone
    per_cycle = 1e3 / data.sm_clock_mhz
    gap = (data.start_ns[at] - data.start_ns[at - 1]) / per_cycle - data.issue_cycles[at - 1]
    asked = np.array([b.gap_cycles for s in data.schedules for b in s.bursts], dtype=np.float64)[at]
    size = np.array([b.bytes for s in data.schedules for b in s.bursts], dtype=np.float64)[at - 1]
    warps = np.array([s.warps for s in data.schedules], dtype=np.float64)[owner][at]
    count = size / law.store_bytes
    before, free = data.issue_cycles[at - 1], free_cycles(law, cycles, warps, count / warps, fresh=False)
    at_once = (asked == 0) & np.isfinite(gap)
    calm, held = alone & at_once & (before < _STALLED * free), at_once & (before > 3 * _STALLED * free)
    longer = alone & np.isfinite(gap) & (asked > 2000) & (before < _STALLED * free)
    turnaround = float(np.median(gap[calm])) if calm.any() else law.turnaround
    overhead = float(np.median(gap[longer] - asked[longer])) if longer.any() else law.gap_overhead
    share = law.stall_turnaround
    if held.any():
        interval = before[held] / count[held] - law.store_bytes / SM_BYTES_PER_CYCLE
        # Where the SM's own drain is what holds, there is no interval to speak of, and what is left is noise.
        share = max(0.0, float(np.median((gap[held] - turnaround) / np.maximum(interval, law.store_bytes / SM_BYTES_PER_CYCLE))))
    return replace(law, turnaround=turnaround, gap_overhead=overhead, stall_turnaround=share)


def _with_queue(law: IssueLaw, cycles: float, data: MeasuredSchedules) -> IssueLaw:
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


def _held(law: IssueLaw, cycles: float, data: MeasuredSchedules, producers: int, near: int, above: float) -> tuple[dict[int, float], float]:
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
