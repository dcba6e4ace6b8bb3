"""The event loop for numba: one column after the other, results reduced over units on the way.

The equations, the events and the ties are those of `fluid.solve` and `calm.calm`; read them there. What differs is the shape of the work:
a column's few units stay in the first-level cache, nothing is allocated, rates are found again only after they have changed, and a column
ends when its last burst is issued. A unit here may be a class of `multiple` like units (`classes`). Interpreted, this loop takes eleven
times as long as numpy's `fluid` does for a fit, so both remain.

Each row of a column's state has whole blocks of eight places, at a compile-time distance from the next in one array: so the compiler knows
that rows do not overlap and makes vector code of the short loops over units.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from xstage_bench.model.arrays import FloatArray, IntArray
from xstage_bench.model.backpressure import FAR, TIE, blurred_excess, is_full, service_weight

ALONE, TIMED = 0, 2
#: Units of one column at most.
MOST_UNITS = 256
_CLEAR = 12.0  # as in `calm`
_BLOCK = 8
ROW = MOST_UNITS + _BLOCK
#: Columns of what is asked of each burst, as `fluid.FluidColumns` has it, and of what comes `out`.
LOAD, FREE, GAP, DEADLINE, UNHELD = range(5)
ISSUE, SLOWEST, START, END, EARLIEST, LATEST, LEFT, DRAINED = range(8)


class Constants(NamedTuple):
    """What the event loop needs once, by the names of `fluid.FluidColumns`."""

    link: float
    sm_rate: float
    buffer: float
    credit: float
    turnaround: float
    gap_overhead: float
    stall_turnaround: float
    blur: float
    evens_out: float


#: A column's units are one array: unit u's backlog is ``at[BACKLOG + u]``. What `classes.unit_table` says of a unit,
MEMBERS, CAPACITY, MULTIPLE, LOG_WEIGHT = (i * ROW for i in range(4))
#: when its burst begins, and when that is due (`FAR`: it has begun); its bytes outstanding, and the backlog at which the burst's last store
#: has room (0: none is waited for);
BEGIN, DUE, BACKLOG, FLOOR = (i * ROW for i in range(4, 8))
#: bytes per cycle that it could drain, its weight at the link, what it drains, and 1 over that; cycles to its next event, and the least of
#: those in each block of units.
WANTED, ACTIVE, RATE, INVERSE, AHEAD, SOONEST = (i * ROW for i in range(8, 14))


def solve(
    first: IntArray,
    rule: IntArray,
    kind: IntArray,
    store_bytes: FloatArray,
    bursts: FloatArray,
    counts: IntArray,
    table: FloatArray,
    c: Constants,
    out: FloatArray,
) -> int:
    """Run every schedule to its end.

    Parameters
    ----------
    first : ndarray of int, shape (S + 1,)
    rule, kind : ndarray of int, shape (S,)
        Start rule, and which units of `table` produce.
    store_bytes : ndarray, shape (S,)
    bursts : ndarray, shape (bursts, 5)
    counts : ndarray of int, shape (kinds,)
        How many units of each kind there are.
    table : ndarray, shape (kinds, 4, U)
        From `classes.unit_table`.
    c : Constants
    out : ndarray, shape (bursts, 8)
        Written: mean and slowest issue, mean start, latest end, earliest and latest start, bytes left, last byte drained; cycles and bytes.

    Returns
    -------
    int
        Steps of the event loop.
    """
    at = np.zeros(14 * ROW)
    burst = np.zeros(ROW, dtype=np.int64)  # that each unit issues
    steps = 0
    for s in range(first.size - 1):
        count = counts[kind[s]]
        producers, least, room = take_units(at, table[kind[s]], count, c)
        length = 1 if rule[s] == ALONE else first[s + 1] - first[s]
        for lo in range(first[s], first[s + 1], length):
            timed = rule[s] == TIMED
            if not is_calm(lo, lo + length, timed, producers, least, room, bursts, c, out):
                steps += run_column(lo, lo + length, timed, count, producers, store_bytes[s], bursts, c, at, burst, out)
    return steps


def take_units(at: FloatArray, table: FloatArray, count: int, c: Constants) -> tuple[float, float, float]:
    """Take over the units of a schedule; return its producers, and the least that one of them can drain and have outstanding."""
    least, room, producers, total = c.sm_rate, FAR, 0.0, 0.0
    for u in range(count):
        at[MEMBERS + u], at[CAPACITY + u] = table[0, u], table[1, u]
        at[MULTIPLE + u], at[LOG_WEIGHT + u] = table[2, u], table[3, u]
        share = table[2, u] * math.exp(table[3, u])
        at[RATE + u] = share / table[0, u]
        producers += table[0, u]
        total += share
        room = min(room, table[1, u] / table[0, u])
    for u in range(count):
        least = min(least, at[RATE + u] * c.link / total)
    return producers, least, room


def is_calm(
    lo: int, hi: int, timed: bool, producers: float, least: float, room: float, bursts: FloatArray, c: Constants, out: FloatArray
) -> bool:
    """Return whether bursts lo to hi cannot stall, and write their results if so."""
    most = min(producers * c.sm_rate, c.link)
    begin = bursts[lo, DEADLINE] if timed else 0.0
    backlog, total, before, end = 0.0, 0.0, 0.0, 0.0
    for i in range(lo, hi):
        if i > lo:
            begin = max(end + c.turnaround, bursts[i, DEADLINE]) if timed else end + max(c.turnaround, bursts[i, GAP] + c.gap_overhead)
            backlog = max(backlog - least * (begin - before), 0.0)
            total = max(total - most * (begin - before), 0.0)
        now = backlog + bursts[i, LOAD]
        hidden = max(least * (c.credit - bursts[i, FREE]), 0.0) + _CLEAR * c.blur * backlog if backlog > 0 else 0.0
        if now + hidden > room + bursts[i, UNHELD]:
            return False
        end = begin + bursts[i, FREE]
        total += bursts[i, LOAD] * producers
        left = max(total - most * bursts[i, FREE], 0.0)
        out[i, ISSUE], out[i, SLOWEST] = bursts[i, FREE], bursts[i, FREE]
        out[i, START], out[i, EARLIEST], out[i, LATEST], out[i, END] = begin, begin, begin, end
        out[i, LEFT], out[i, DRAINED] = left, end + left / c.link
        before, backlog = begin, now
    return True


def run_column(
    lo: int,
    hi: int,
    timed: bool,
    count: int,
    producers: float,
    store_bytes: float,
    bursts: FloatArray,
    c: Constants,
    at: FloatArray,
    burst: IntArray,
    out: FloatArray,
) -> int:
    """Run bursts lo to hi through the event loop; return its steps."""
    width = (count + _BLOCK - 1) // _BLOCK * _BLOCK
    reset(at, width, count, bursts[lo, DEADLINE] if timed else 0.0)
    for u in range(width):
        burst[u] = lo
    for i in range(lo, hi):
        for k in range(8):
            out[i, k] = 0.0
        out[i, EARLIEST] = FAR
    now, level, inflow, steps = 0.0, 0.0, 0.0, 0
    waiting, changed, was_full = count, True, False
    while waiting > 0:
        steps += 1
        full = is_full(level, c.buffer)
        if changed or full != was_full:
            inflow = find_rates(at, width, count, full, c.link)
            changed, was_full = False, full
        nearest = find_next(at, width, now)
        if nearest >= FAR / 2:
            break  # nothing will ever happen: no rate is positive
        growth = inflow - c.link
        if full and growth >= 0:
            growth = 0.0
        dt = max(nearest, 0.0)
        if growth > 0:
            dt = min(dt, (c.buffer - level) / growth)
        began = now
        now = began + dt
        level = min(max(level + growth * dt, 0.0), c.buffer)
        for u in range(width):
            at[BACKLOG + u] = max(at[BACKLOG + u] - at[RATE + u] * dt, 0.0)
        through_buffer = level / c.link
        for block in range(width // _BLOCK):
            if at[SOONEST + block] > dt + TIE:
                continue
            for u in range(block * _BLOCK, block * _BLOCK + _BLOCK):
                if at[AHEAD + u] > dt + TIE:
                    continue
                i, begin, members = burst[u], at[BEGIN + u], at[MEMBERS + u]
                rate, inverse = at[RATE + u], at[INVERSE + u]
                if at[FLOOR + u] > 0:  # the last store of the burst has room
                    known = began + at[AHEAD + u] + c.credit
                    at[FLOOR + u] = 0.0
                elif at[DUE + u] <= now + TIE:  # the burst begins
                    held = at[BACKLOG + u]
                    backlog = held + bursts[i, LOAD] * members
                    at[BACKLOG + u], at[DUE + u] = backlog, FAR
                    if backlog > 0:
                        at[WANTED + u] = members * c.sm_rate
                        at[ACTIVE + u] = at[MULTIPLE + u] * service_weight(at[LOG_WEIGHT + u], c.evens_out, bursts[i, LOAD])
                        changed = True
                    over, known = backlog - at[CAPACITY + u] - bursts[i, UNHELD] * members, 0.0
                    if held > TIE * rate:
                        over = blurred_excess(over, rate, c.credit - bursts[i, FREE], c.blur * held + 1e-9)
                        known = begin + c.credit + over * inverse
                    else:
                        rate = min(c.sm_rate, c.link / producers) * members
                        inverse = 1.0 / rate
                    if over > 0:
                        at[FLOOR + u] = max(backlog - over, 1e-6)
                        continue
                else:  # its queue has run empty
                    at[BACKLOG + u], at[WANTED + u], at[ACTIVE + u] = 0.0, 0.0, 0.0
                    changed = True
                    continue
                # The burst ends: `known` is when its SMs know that its last store has room.
                end = max(begin + bursts[i, FREE], known)
                left = max(at[BACKLOG + u] - rate * (end - now), 0.0)
                add_result(out, i, members, begin, end, left, end + left * inverse + through_buffer)
                if i + 1 == hi:
                    waiting -= 1
                    continue
                least = c.turnaround
                if known > begin + bursts[i, FREE] + TIE:
                    least += after_stall(c, store_bytes, bursts[i, UNHELD], members * inverse)
                begin = max(end + least, bursts[i + 1, DEADLINE]) if timed else end + max(least, bursts[i + 1, GAP] + c.gap_overhead)
                burst[u], at[BEGIN + u], at[DUE + u] = i + 1, begin, begin
    for i in range(lo, hi):
        out[i, ISSUE] /= producers
        out[i, START] /= producers
    return steps


def add_result(out: FloatArray, i: int, members: float, begin: float, end: float, left: float, drained: float) -> None:
    """Add a unit's burst to the results of all units."""
    out[i, ISSUE] += (end - begin) * members
    out[i, SLOWEST] = max(out[i, SLOWEST], end - begin)
    out[i, START] += begin * members
    out[i, END] = max(out[i, END], end)
    out[i, EARLIEST] = min(out[i, EARLIEST], begin)
    out[i, LATEST] = max(out[i, LATEST], begin)
    out[i, LEFT] += left
    out[i, DRAINED] = max(out[i, DRAINED], drained)


def after_stall(c: Constants, store_bytes: float, unheld: float, cycles_per_byte: float) -> float:
    """Return by how much the next burst's start is later after a stall: for what the last stamp has left behind or overtaken."""
    return (c.stall_turnaround * store_bytes + unheld) * max(cycles_per_byte - 1.0 / c.sm_rate, 0.0)


def reset(at: FloatArray, width: int, count: int, opening: float) -> None:
    """Let all units wait for the first burst; places beyond the last unit never have an event."""
    for u in range(width):
        at[BACKLOG + u] = 0.0
        at[FLOOR + u] = 0.0
        at[WANTED + u] = 0.0
        at[ACTIVE + u] = 0.0
        at[RATE + u] = 0.0
        at[BEGIN + u] = opening
        at[DUE + u] = opening if u < count else FAR


def find_rates(at: FloatArray, width: int, count: int, full: bool, link: float) -> float:
    """Find what each unit drains: all it wants, or with the buffer full its share of the link; return what all want."""
    inflow, total = 0.0, 0.0
    for u in range(width):
        inflow += at[WANTED + u]
        total += at[ACTIVE + u]
    fair = FAR
    if full and total > 0:
        fair = link / total
        capped = 0
        for u in range(width):
            capped += at[WANTED + u] < at[ACTIVE + u] * fair
        if capped:
            fair = fair_level(at, count, link, inflow, total)
    for u in range(width):
        rate = min(at[WANTED + u], at[ACTIVE + u] * fair)
        at[RATE + u] = rate
        at[INVERSE + u] = 1.0 / rate
    return inflow


def fair_level(at: FloatArray, count: int, link: float, inflow: float, total: float) -> float:
    """Return `fluid.level_of` of the units as they are."""
    if inflow <= link:
        return FAR
    level, before, after = 0.0, 0.0, total
    for u in range(count):
        if at[ACTIVE + u] > 0:
            if after > 1e-12:
                level = max(level, (link - before) / after)
            before += at[WANTED + u]
            after -= at[ACTIVE + u]
    return level


def find_next(at: FloatArray, width: int, now: float) -> float:
    """Return the time to the next event of any unit."""
    for u in range(width):
        until = (at[BACKLOG + u] - at[FLOOR + u]) * at[INVERSE + u]
        at[AHEAD + u] = min(until if at[RATE + u] > 0 else FAR, at[DUE + u] - now)
    nearest = FAR
    for block in range(width // _BLOCK):
        u = block * _BLOCK
        # As a tree: in a chain each minimum would wait for the one before it.
        left = min(min(at[AHEAD + u], at[AHEAD + u + 1]), min(at[AHEAD + u + 2], at[AHEAD + u + 3]))
        right = min(min(at[AHEAD + u + 4], at[AHEAD + u + 5]), min(at[AHEAD + u + 6], at[AHEAD + u + 7]))
        at[SOONEST + block] = min(left, right)
        nearest = min(nearest, at[SOONEST + block])
    return nearest


#: What `jit` compiles, callees first.
COMPILED = ("take_units", "is_calm", "reset", "fair_level", "find_rates", "find_next", "add_result", "after_stall", "run_column", "solve")
