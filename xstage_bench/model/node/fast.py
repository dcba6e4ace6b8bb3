"""The event loop of `fluid` compiled: one schedule after the other, results reduced over units on the way. Needs numba.

Same equations, same order of events, same ties as `fluid.solve`; read them there. What differs is the shape of the work: a schedule's few
units stay in the first-level cache, nothing is allocated, and a column ends when its last burst has been issued. A unit here may be a
class of `multiple` like units (`classes`).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
ALONE, TIMED = 0, 2
_TIE = 0.25  # cycles, as in `fluid`
_CLEAR = 12.0  # as in `calm`
_WIDE = 34.0  # logaddexp(0, x) is x above this, and 0 below its negative, to double precision
FAR = 1e300  # later than anything: finite, so that the compiler may reorder sums and minima
#: Rows of the scalars and of the results.
SCALARS = ("link", "sm_rate", "buffer", "credit", "turnaround", "gap_overhead", "stall_turnaround", "blur", "evens_out")
RESULTS = ("issue", "slowest", "start", "end", "earliest", "latest", "left", "drained")


@njit(cache=True, nogil=True, fastmath=True)  # type: ignore[untyped-decorator]
def solve_packed(
    first: IntArray,
    rule: IntArray,
    spec: IntArray,
    store_bytes: FloatArray,
    load: FloatArray,
    free: FloatArray,
    gap: FloatArray,
    deadline: FloatArray,
    units: IntArray,
    members: FloatArray,
    weight: FloatArray,
    capacity: FloatArray,
    multiple: FloatArray,
    scalars: FloatArray,
    out: FloatArray,
) -> int:
    """Run every schedule to its end.

    Parameters
    ----------
    first : ndarray of int, shape (S + 1,)
    rule, spec : ndarray of int, shape (S,)
        Start rule, and which row of the tables of units.
    store_bytes : ndarray, shape (S,)
    load, free, gap, deadline : ndarray, shape (bursts,)
        As `fluid.Rows`.
    units : ndarray of int, shape (specs,)
        How many units of each row are used.
    members, weight, capacity, multiple : ndarray, shape (specs, U)
        As `fluid.Rows`; `weight` of one unit of the class, the others of all together.
    scalars : ndarray
        In the order of `SCALARS`.
    out : ndarray, shape (8, bursts)
        Written, in the order of `RESULTS`; cycles and bytes.

    Returns
    -------
    int
        Events handled.
    """
    width = members.shape[1]
    state = np.zeros((10, width))
    burst = np.zeros(width, dtype=np.int64)
    events = 0
    for s in range(first.size - 1):
        row = spec[s]
        count = units[row]
        alone = rule[s] == ALONE
        lo, hi = first[s], first[s + 1]
        step = 1 if alone else hi - lo
        for at in range(lo, hi, step):
            if not _calm(at, at + step, rule[s], row, count, load, free, gap, deadline, members, weight, capacity, multiple, scalars, out):
                events += _column(
                    at, at + step, rule[s], row, count, store_bytes[s], load, free, gap, deadline, members, weight, capacity, multiple,
                    scalars, state, burst, out,
                )  # fmt: skip
    return events


@njit(cache=True, nogil=True, fastmath=True)  # type: ignore[untyped-decorator]
def _calm(
    lo: int, hi: int, rule: int, row: int, count: int, load: FloatArray, free: FloatArray, gap: FloatArray, deadline: FloatArray,
    members: FloatArray, weight: FloatArray, capacity: FloatArray, multiple: FloatArray, scalars: FloatArray, out: FloatArray,
) -> bool:  # fmt: skip
    """Return whether this column cannot stall (`calm.calm`), and write its results if so."""
    link, sm_rate, credit, turnaround, overhead, blur = scalars[0], scalars[1], scalars[3], scalars[4], scalars[5], scalars[7]
    total_weight, producers = 0.0, 0.0
    for u in range(count):
        total_weight += weight[row, u] * multiple[row, u]
        producers += members[row, u]
    least, room = sm_rate, FAR
    for u in range(count):
        least = min(least, weight[row, u] * multiple[row, u] * link / total_weight / members[row, u])
        room = min(room, capacity[row, u] / members[row, u])
    most = min(producers * sm_rate, link)
    begin = deadline[lo] if rule == TIMED else 0.0
    backlog, total, before, end = 0.0, 0.0, 0.0, 0.0
    for i in range(lo, hi):
        if i > lo:
            if rule == TIMED:
                begin = max(end + turnaround, deadline[i])
            else:
                begin = end + max(turnaround, gap[i] + overhead)
            backlog = max(backlog - least * (begin - before), 0.0)
            total = max(total - most * (begin - before), 0.0)
        now = backlog + load[i]
        hidden = 0.0
        if backlog > 0:
            hidden = max(least * (credit - free[i]), 0.0) + _CLEAR * blur * backlog
        if now + hidden > room:
            return False
        end = begin + free[i]
        total += load[i] * producers
        left = max(total - most * free[i], 0.0)
        out[0, i] = free[i]
        out[1, i] = free[i]
        out[2, i] = begin
        out[3, i] = end
        out[4, i] = begin
        out[5, i] = begin
        out[6, i] = left
        out[7, i] = end + left / link
        before, backlog = begin, now
    return True


@njit(cache=True, nogil=True, fastmath=True)  # type: ignore[untyped-decorator]
def _level(link: float, inflow: float, total: float, count: int, wanted: FloatArray, active: FloatArray) -> float:
    """Return `fluid.level_of` of these units."""
    if inflow <= link:
        return FAR
    level, before, after = 0.0, 0.0, total
    for u in range(count):
        if active[u] > 0:
            if after > 1e-12:
                level = max(level, (link - before) / after)
            before += wanted[u]
            after -= active[u]
    return level


@njit(cache=True, nogil=True, fastmath=True)  # type: ignore[untyped-decorator]
def _column(
    lo: int, hi: int, rule: int, row: int, count: int, store_bytes: float, load: FloatArray, free: FloatArray, gap: FloatArray,
    deadline: FloatArray, members: FloatArray, weight: FloatArray, capacity: FloatArray, multiple: FloatArray, scalars: FloatArray,
    state: FloatArray, burst: IntArray, out: FloatArray,
) -> int:  # fmt: skip
    link, sm_rate, buffer, credit, turnaround, overhead, stall_turnaround, blur_share, evens_out = (
        scalars[0], scalars[1], scalars[2], scalars[3], scalars[4], scalars[5], scalars[6], scalars[7], scalars[8],
    )  # fmt: skip
    backlog, floor, due, begin, demand, wanted, active, rate, ahead, logw = (
        state[0], state[1], state[2], state[3], state[4], state[5], state[6], state[7], state[8], state[9],
    )  # fmt: skip
    producers = 0.0
    opening = deadline[lo] if rule == TIMED else 0.0
    for u in range(count):
        backlog[u] = 0.0
        floor[u] = 0.0
        begin[u] = opening
        due[u] = opening
        demand[u] = members[row, u] * sm_rate
        wanted[u] = 0.0
        active[u] = 0.0
        logw[u] = math.log(weight[row, u])
        burst[u] = lo
        producers += members[row, u]
    for i in range(lo, hi):
        out[0, i] = 0.0
        out[1, i] = -FAR
        out[2, i] = 0.0
        out[3, i] = -FAR
        out[4, i] = FAR
        out[5, i] = -FAR
        out[6, i] = 0.0
        out[7, i] = -FAR
    now, level, events = 0.0, 0.0, 0
    inflow, fair = 0.0, FAR
    waiting, changed, was_full = count, True, False
    while waiting > 0:
        events += 1
        full = level >= buffer * (1 - 1e-9)
        if changed or full != was_full:
            inflow, total = 0.0, 0.0
            for u in range(count):
                inflow += wanted[u]
                total += active[u]
            fair = FAR
            if full and total > 0:
                fair = link / total
                capped = False
                for u in range(count):
                    capped |= wanted[u] < active[u] * fair
                if capped:
                    fair = _level(link, inflow, total, count, wanted, active)
            for u in range(count):
                rate[u] = min(wanted[u], active[u] * fair)
            changed, was_full = False, full
        nearest = FAR
        for u in range(count):
            until = (backlog[u] - floor[u]) / rate[u] if backlog[u] > 0 else FAR
            ahead[u] = min(until, due[u] - now)
            nearest = min(nearest, ahead[u])
        growth = inflow - link
        if full and growth >= 0:
            growth = 0.0
        dt = max(nearest, 0.0)
        if growth > 0:
            dt = min(dt, (buffer - level) / growth)
        began = now
        now = began + dt
        level = min(max(level + growth * dt, 0.0), buffer)
        for u in range(count):
            backlog[u] = max(backlog[u] - rate[u] * dt, 0.0)
        for u in range(count):
            if ahead[u] > dt + _TIE:
                continue
            i = burst[u]
            if floor[u] > 0:
                known, r = began + ahead[u] + credit, rate[u]
            elif due[u] <= began + dt + _TIE:
                r = max(rate[u], 1e-9)
                held = backlog[u]
                backlog[u] = held + load[i] * members[row, u]
                due[u] = FAR
                if backlog[u] > 0:
                    wanted[u] = demand[u]
                    active[u] = multiple[row, u] * math.exp(logw[u] / (1.0 + load[i] / evens_out))
                    changed = True
                over = backlog[u] - capacity[row, u]
                known = 0.0
                if held > 0:
                    hidden = r * (credit - free[i])
                    blur = blur_share * held + 1e-9
                    x = (over + hidden) / blur
                    if x < -_WIDE:
                        over = -hidden
                    elif x < _WIDE:
                        over = blur * (max(x, 0.0) + math.log1p(math.exp(-abs(x)))) - hidden
                    known = begin[u] + credit + over / r
                if over > 0:
                    floor[u] = max(backlog[u] - over, 1e-6)
                    continue
            else:
                backlog[u] = wanted[u] = active[u] = 0.0
                changed = True
                continue
            # The burst ends: `known` is when its SMs know that its last store has room.
            end = begin[u] + free[i]
            stalled = known > end
            end = max(end, known)
            left = max(backlog[u] - r * (end - now), 0.0)
            issue = end - begin[u]
            out[0, i] += issue * members[row, u]
            out[1, i] = max(out[1, i], issue)
            out[2, i] += begin[u] * members[row, u]
            out[3, i] = max(out[3, i], end)
            out[4, i] = min(out[4, i], begin[u])
            out[5, i] = max(out[5, i], begin[u])
            out[6, i] += left
            out[7, i] = max(out[7, i], end + left / r + level / link)
            floor[u] = 0.0
            least = turnaround
            if stalled:
                least += stall_turnaround * max(store_bytes * (members[row, u] / r - 1.0 / sm_rate), 0.0)
            if i + 1 == hi:
                due[u] = FAR
                waiting -= 1
                continue
            burst[u] = i + 1
            begin[u] = max(end + least, deadline[i + 1]) if rule == TIMED else end + max(least, gap[i + 1] + overhead)
            due[u] = begin[u]
    for i in range(lo, hi):
        out[0, i] /= producers
        out[2, i] /= producers
    return events
