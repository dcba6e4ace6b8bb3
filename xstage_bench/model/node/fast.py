"""The event loop of `fluid` compiled: one column after the other, results reduced over units on the way. Needs numba.

The equations, the events and the ties are those of `fluid.solve` and `calm.calm`; read them there. What differs is the shape of the work:
a column's few units stay in the first-level cache, nothing is allocated, rates are found again only after they have changed, and a column
ends when its last burst is issued. A unit here may be a class of `multiple` like units (`classes`).

Scratch is one flat array with a compile-time distance between its rows, whole blocks of eight long: so the compiler knows that rows do not
overlap and makes vector code of the short loops over units. All compiled functions are in this one file, because numba keeps what it
compiled until the file of the outermost changes.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from xstage_bench.model.node.compiled import MOST_UNITS

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
ALONE, TIMED = 0, 2
FAR = 1e300  # later than anything: finite, so that the compiler may reorder sums and minima
_TIE = 0.25  # cycles, as in `fluid`
_CLEAR = 12.0  # as in `calm`
_WIDE = 34.0  # logaddexp(0, x) is x above this, and 0 below its negative, to double precision
_BLOCK = 8
_ROW = MOST_UNITS + _BLOCK
_BACKLOG, _FLOOR, _DUE, _WANTED, _ACTIVE, _RATE, _AHEAD, _BEGIN, _MEMBERS, _CAPACITY, _MULTIPLE, _LOG_WEIGHT, _INVERSE, _SOONEST = (
    i * _ROW for i in range(14)
)


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")  # type: ignore[untyped-decorator]
def solve_packed(
    first: IntArray,
    rule: IntArray,
    kind: IntArray,
    store_bytes: FloatArray,
    load: FloatArray,
    free: FloatArray,
    gap: FloatArray,
    deadline: FloatArray,
    unheld: FloatArray,
    units: IntArray,
    table: FloatArray,
    scalars: FloatArray,
    out: FloatArray,
) -> int:
    """Run every schedule to its end.

    Parameters
    ----------
    first : ndarray of int, shape (S + 1,)
    rule, kind : ndarray of int, shape (S,)
        Start rule, and which units of `table` produce.
    store_bytes : ndarray, shape (S,)
    load, free, gap, deadline, unheld : ndarray, shape (bursts,)
        As `fluid.Rows`.
    units : ndarray of int, shape (kinds,)
        How many units of each kind there are.
    table : ndarray, shape (kinds, 4, U)
        members, capacity and number of units of each class, all together, and the logarithm of the weight of one, in the order that
        `fluid.Rows` wants.
    scalars : ndarray
        In the order of `compiled.SCALARS`.
    out : ndarray, shape (bursts, 8)
        Written: mean and slowest issue, mean start, latest end, earliest and latest start, bytes left, last byte drained; cycles and bytes.

    Returns
    -------
    int
        Steps of the event loop.
    """
    state = np.zeros(14 * _ROW)
    burst = np.zeros(_ROW, dtype=np.int64)
    steps = 0
    for s in range(first.size - 1):
        count = units[kind[s]]
        least, room, producers, total = scalars[1], FAR, 0.0, 0.0
        for u in range(count):
            members, capacity = table[kind[s], 0, u], table[kind[s], 1, u]
            multiple, log_weight = table[kind[s], 2, u], table[kind[s], 3, u]
            state[_MEMBERS + u] = members
            state[_CAPACITY + u] = capacity
            state[_MULTIPLE + u] = multiple
            state[_LOG_WEIGHT + u] = log_weight
            share = multiple * math.exp(log_weight)
            state[_RATE + u] = share / members
            producers += members
            total += share
            room = min(room, capacity / members)
        for u in range(count):
            least = min(least, state[_RATE + u] * scalars[0] / total)
        length = 1 if rule[s] == ALONE else first[s + 1] - first[s]
        for lo in range(first[s], first[s + 1], length):
            hi = lo + length
            if not _calm(lo, hi, rule[s] == TIMED, producers, least, room, load, free, gap, deadline, unheld, scalars, out):
                steps += _column(
                    lo,
                    hi,
                    rule[s] == TIMED,
                    count,
                    producers,
                    store_bytes[s],
                    load,
                    free,
                    gap,
                    deadline,
                    unheld,
                    scalars,
                    state,
                    burst,
                    out,
                )
    return steps


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _calm(
    lo: int,
    hi: int,
    timed: bool,
    producers: float,
    least: float,
    room: float,
    load: FloatArray,
    free: FloatArray,
    gap: FloatArray,
    deadline: FloatArray,
    unheld: FloatArray,
    scalars: FloatArray,
    out: FloatArray,
) -> bool:
    """Return whether bursts lo to hi cannot stall, and write their results if so."""
    link, credit, turnaround, overhead, blur = scalars[0], scalars[3], scalars[4], scalars[5], scalars[7]
    most = min(producers * scalars[1], link)
    begin = deadline[lo] if timed else 0.0
    backlog, total, before, end = 0.0, 0.0, 0.0, 0.0
    for i in range(lo, hi):
        if i > lo:
            begin = max(end + turnaround, deadline[i]) if timed else end + max(turnaround, gap[i] + overhead)
            backlog = max(backlog - least * (begin - before), 0.0)
            total = max(total - most * (begin - before), 0.0)
        now = backlog + load[i]
        hidden = max(least * (credit - free[i]), 0.0) + _CLEAR * blur * backlog if backlog > 0 else 0.0
        if now + hidden > room + unheld[i]:
            return False
        end = begin + free[i]
        total += load[i] * producers
        left = max(total - most * free[i], 0.0)
        out[i, 0] = free[i]
        out[i, 1] = free[i]
        out[i, 2] = begin
        out[i, 3] = end
        out[i, 4] = begin
        out[i, 5] = begin
        out[i, 6] = left
        out[i, 7] = end + left / link
        before, backlog = begin, now
    return True


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _level(link: float, inflow: float, total: float, count: int, state: FloatArray) -> float:
    """Return `fluid.level_of` of the units as they are."""
    if inflow <= link:
        return FAR
    level, before, after = 0.0, 0.0, total
    for u in range(count):
        if state[_ACTIVE + u] > 0:
            if after > 1e-12:
                level = max(level, (link - before) / after)
            before += state[_WANTED + u]
            after -= state[_ACTIVE + u]
    return level


@njit(cache=True, nogil=True, fastmath=True, error_model="numpy")  # type: ignore[untyped-decorator]
def _column(
    lo: int,
    hi: int,
    timed: bool,
    count: int,
    producers: float,
    store_bytes: float,
    load: FloatArray,
    free: FloatArray,
    gap: FloatArray,
    deadline: FloatArray,
    unheld: FloatArray,
    scalars: FloatArray,
    state: FloatArray,
    burst: IntArray,
    out: FloatArray,
) -> int:
    """Run bursts lo to hi through the event loop; return its steps."""
    link, sm_rate, buffer, credit, turnaround = scalars[0], scalars[1], scalars[2], scalars[3], scalars[4]
    overhead, stall_turnaround, blur_share, evens_out = scalars[5], scalars[6], scalars[7], scalars[8]
    width = (count + _BLOCK - 1) // _BLOCK * _BLOCK
    opening = deadline[lo] if timed else 0.0
    for u in range(width):
        state[_BACKLOG + u] = 0.0
        state[_FLOOR + u] = 0.0
        state[_WANTED + u] = 0.0
        state[_ACTIVE + u] = 0.0
        state[_RATE + u] = 0.0
        state[_BEGIN + u] = opening
        state[_DUE + u] = opening if u < count else FAR
        burst[u] = lo
    for i in range(lo, hi):
        for k in range(8):
            out[i, k] = 0.0
        out[i, 4] = FAR
    now, level, steps = 0.0, 0.0, 0
    inflow, fair = 0.0, FAR
    waiting, changed, was_full = count, True, False
    while waiting > 0:
        steps += 1
        full = level >= buffer * (1 - 1e-9)
        if changed or full != was_full:
            inflow, total = 0.0, 0.0
            for u in range(width):
                inflow += state[_WANTED + u]
                total += state[_ACTIVE + u]
            fair = FAR
            if full and total > 0:
                fair = link / total
                capped = 0
                for u in range(width):
                    capped += state[_WANTED + u] < state[_ACTIVE + u] * fair
                if capped:
                    fair = _level(link, inflow, total, count, state)
            for u in range(width):
                rate = min(state[_WANTED + u], state[_ACTIVE + u] * fair)
                state[_RATE + u] = rate
                state[_INVERSE + u] = 1.0 / rate
            changed, was_full = False, full
        for u in range(width):
            until = (state[_BACKLOG + u] - state[_FLOOR + u]) * state[_INVERSE + u]
            state[_AHEAD + u] = min(until if state[_RATE + u] > 0 else FAR, state[_DUE + u] - now)
        nearest = FAR
        for block in range(width // _BLOCK):
            u = block * _BLOCK
            # As a tree: in a chain each minimum would wait for the one before it.
            left = min(min(state[_AHEAD + u], state[_AHEAD + u + 1]), min(state[_AHEAD + u + 2], state[_AHEAD + u + 3]))
            right = min(min(state[_AHEAD + u + 4], state[_AHEAD + u + 5]), min(state[_AHEAD + u + 6], state[_AHEAD + u + 7]))
            state[_SOONEST + block] = min(left, right)
            nearest = min(nearest, state[_SOONEST + block])
        growth = inflow - link
        if full and growth >= 0:
            growth = 0.0
        if nearest >= FAR / 2:
            break  # nothing will ever happen: no rate is positive
        dt = max(nearest, 0.0)
        if growth > 0:
            dt = min(dt, (buffer - level) / growth)
        began = now
        now = began + dt
        level = min(max(level + growth * dt, 0.0), buffer)
        for u in range(width):
            state[_BACKLOG + u] = max(state[_BACKLOG + u] - state[_RATE + u] * dt, 0.0)
        ahead_of_link = level / link
        for block in range(width // _BLOCK):
            if state[_SOONEST + block] > dt + _TIE:
                continue
            for u in range(block * _BLOCK, block * _BLOCK + _BLOCK):
                if state[_AHEAD + u] > dt + _TIE:
                    continue
                i = burst[u]
                rate, inverse, members = state[_RATE + u], state[_INVERSE + u], state[_MEMBERS + u]
                if state[_FLOOR + u] > 0:
                    known = began + state[_AHEAD + u] + credit
                    state[_FLOOR + u] = 0.0
                elif state[_DUE + u] <= now + _TIE:
                    held = state[_BACKLOG + u]
                    backlog = held + load[i] * members
                    over = backlog - state[_CAPACITY + u] - unheld[i] * members
                    state[_BACKLOG + u] = backlog
                    state[_DUE + u] = FAR
                    if backlog > 0:
                        state[_WANTED + u] = members * sm_rate
                        state[_ACTIVE + u] = state[_MULTIPLE + u] * math.exp(state[_LOG_WEIGHT + u] * evens_out / (evens_out + load[i]))
                        changed = True
                    known = 0.0
                    if held > _TIE * rate:
                        hidden = rate * (credit - free[i])
                        blur = blur_share * held + 1e-9
                        x = (over + hidden) / blur
                        if x < -_WIDE:
                            over = -hidden
                        elif x < _WIDE:
                            over = blur * (max(x, 0.0) + math.log1p(math.exp(-abs(x)))) - hidden
                        known = state[_BEGIN + u] + credit + over * inverse
                    else:
                        rate = min(sm_rate, link / producers) * members
                        inverse = 1.0 / rate
                    if over > 0:
                        state[_FLOOR + u] = max(backlog - over, 1e-6)
                        continue
                else:
                    state[_BACKLOG + u] = 0.0
                    state[_WANTED + u] = 0.0
                    state[_ACTIVE + u] = 0.0
                    changed = True
                    continue
                # The burst ends: `known` is when its SMs know that its last store has room.
                begin = state[_BEGIN + u]
                end = max(begin + free[i], known)
                left = max(state[_BACKLOG + u] - rate * (end - now), 0.0)
                out[i, 0] += (end - begin) * members
                out[i, 1] = max(out[i, 1], end - begin)
                out[i, 2] += begin * members
                out[i, 3] = max(out[i, 3], end)
                out[i, 4] = min(out[i, 4], begin)
                out[i, 5] = max(out[i, 5], begin)
                out[i, 6] += left
                out[i, 7] = max(out[i, 7], end + left * inverse + ahead_of_link)
                if i + 1 == hi:
                    waiting -= 1
                    continue
                least = turnaround
                if known > begin + free[i] + _TIE:
                    least += (stall_turnaround * store_bytes + unheld[i]) * max(members * inverse - 1.0 / sm_rate, 0.0)
                begin = max(end + least, deadline[i + 1]) if timed else end + max(least, gap[i + 1] + overhead)
                burst[u] = i + 1
                state[_BEGIN + u] = begin
                state[_DUE + u] = begin
    for i in range(lo, hi):
        out[i, 0] /= producers
        out[i, 2] /= producers
    return steps
