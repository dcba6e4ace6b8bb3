"""The event loop: units of SMs as fluid queues before one link, rates constant between events, many schedules in step.

Cumulative bytes of a unit: A(t) issued, D(t) drained. Burst i of the unit, after which A_i bytes are issued, ends at

    e_i = max(s_i + T0_i,  t* + credit),    t* the time at which D(t*) = A_i - capacity,

also when t* lies less than a credit before s_i, and the next one starts by the schedule's rule. Units share the link by weight
(`level_of`); all SMs of a unit are alike, but for a draining unit's room, which is blurred: the stall is then the mean of max(0, .) over
a logistic spread. Each step takes every schedule to its own next event: a burst begins, a backlog falls to what it waits for, a queue runs
empty, the buffer before the link is full. The state between events is exact, so there is no step size.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from xstage_bench.model.arrays import BoolArray, FloatArray, IntArray

FREE, TIMED = 1, 2
_COMPACT = 0.75  # drop finished schedules when fewer than this share are left
_TIE = 0.25  # cycles: events closer than this are one


@dataclass(slots=True)
class FluidColumns:
    """What to solve: one column per schedule, U units, N bursts at most. Cycles and bytes.

    Parameters
    ----------
    members, weight, multiple, capacity : ndarray, shape (U, S)
        SMs of each unit that produce (0: none), its weight at the link, bytes that it may have outstanding. A row may be a class of
        `multiple` like units: members and capacity are then all theirs, the weight is of one. Within a column, units must ascend in
        members / weight: the order in which more of the link stops helping them.
    load, free, gap, deadline, unheld : ndarray, shape (N, S)
        Bytes per producer, T0, asked gap and start time of each burst, and its last bytes whose room a producer does not wait for.
    bursts, rule : ndarray of int, shape (S,)
    link, sm_rate, buffer, credit, turnaround, gap_overhead, stall_turnaround, store_bytes, blur, evens_out : ndarray, shape (S,)
    """

    members: FloatArray
    weight: FloatArray
    multiple: FloatArray
    capacity: FloatArray
    load: FloatArray
    free: FloatArray
    gap: FloatArray
    deadline: FloatArray
    unheld: FloatArray
    bursts: IntArray
    rule: IntArray
    link: FloatArray
    sm_rate: FloatArray
    buffer: FloatArray
    credit: FloatArray
    turnaround: FloatArray
    gap_overhead: FloatArray
    stall_turnaround: FloatArray
    store_bytes: FloatArray
    blur: FloatArray
    evens_out: FloatArray

    def take(self, keep: IntArray) -> FluidColumns:
        """Return these columns only."""
        return FluidColumns(**{f.name: np.ascontiguousarray(getattr(self, f.name)[..., keep]) for f in fields(self)})


@dataclass(slots=True)
class FluidSolution:
    """Per burst and unit, shape (N, U, S), NaN where there is none: start and end of issue, bytes of the unit not yet drained at its end,
    and when the last of them leaves the link.
    """

    start: FloatArray
    end: FloatArray
    left: FloatArray
    drained: FloatArray


def level_of(link: FloatArray, demand: FloatArray, weight: FloatArray) -> FloatArray:
    """Return the level f at which sum(min(demand, weight * f)) = link, over the first axis.

    Parameters
    ----------
    link : ndarray, shape (S,)
    demand, weight : ndarray, shape (U, S)
        0 and 0 for an inactive unit; `demand` / `weight` ascends along the first axis.

    Returns
    -------
    ndarray, shape (S,)
        Infinite when the whole demand fits.

    Notes
    -----
    Serving the first i in full and the others by weight needs f_i = (link - demand before i) / (weight from i on); each such line lies
    above the true demand curve, so the level is the largest f_i (and where the order is not quite kept, a little less than could be had).
    """
    before = np.cumsum(demand, axis=0)
    after = np.cumsum(weight[::-1], axis=0)[::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        each = (link - before + demand) / after
    level = np.where(after > 1e-12, each, -np.inf).max(axis=0)
    return np.where(before[-1] <= link, np.inf, level)


def _level(link: FloatArray, demand: FloatArray, weight: FloatArray) -> FloatArray:
    """`level_of`, with the sorted sums only for columns in which some unit cannot use its fair share."""
    total = weight.sum(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        level = np.where(total > 0, link / total, np.inf)
        some = np.flatnonzero((demand < weight * level).any(axis=0))
    if some.size:
        level[some] = level_of(link[some], demand[:, some], weight[:, some])
    return level


def solve(rows: FluidColumns) -> FluidSolution:
    """Run every schedule to its end.

    Parameters
    ----------
    rows : FluidColumns

    Returns
    -------
    FluidSolution
    """
    n, s = rows.load.shape
    out = FluidSolution(*(np.full((n, rows.members.shape[0], s), np.nan) for _ in range(4)))
    columns = np.arange(s)
    state = _State.fresh(rows)
    while columns.size:
        busy = state.step(rows, out, columns)
        if busy.all():
            continue
        if not busy.any() or np.count_nonzero(busy) < _COMPACT * columns.size:
            keep = np.flatnonzero(busy)
            rows, columns, state = rows.take(keep), columns[keep], state.take(keep)
    return out


@dataclass(slots=True)
class _State:
    """Where every unit is, shape (U, S).

    `backlog` in bytes, and the `floor` to which it must fall before the burst ends (0: none is issuing); `burst` index, its `begin`, and
    when it is `due` (inf: begun). `demand`: members * sm_rate. `weight`: of the current burst. Shape (S,): `now`, and the `level` of the
    buffer before the link.
    """

    now: FloatArray
    level: FloatArray
    backlog: FloatArray
    burst: IntArray
    begin: FloatArray
    due: FloatArray
    floor: FloatArray
    demand: FloatArray
    weight: FloatArray

    @classmethod
    def fresh(cls, rows: FluidColumns) -> _State:
        shape = rows.members.shape
        has = rows.members > 0
        first = np.where(rows.rule == TIMED, rows.deadline[0], 0.0)
        begin = np.where(has, first, np.inf)
        return cls(
            now=np.zeros(shape[1]),
            level=np.zeros(shape[1]),
            backlog=np.zeros(shape),
            burst=np.zeros(shape, dtype=np.int64),
            begin=begin,
            due=begin.copy(),
            floor=np.zeros(shape),
            demand=rows.members * rows.sm_rate,
            weight=rows.weight * rows.multiple,
        )

    def take(self, keep: IntArray) -> _State:
        return _State(**{f.name: np.ascontiguousarray(getattr(self, f.name)[..., keep]) for f in fields(self)})

    def step(self, rows: FluidColumns, out: FluidSolution, columns: IntArray) -> BoolArray:
        """Take every schedule past its next event; return which had one."""
        active = self.backlog > 0
        demand = np.where(active, self.demand, 0.0)
        inflow = demand.sum(axis=0)
        rate = demand
        full = self.level >= rows.buffer * (1 - 1e-9)
        if full.any():
            level = _level(rows.link, demand, np.where(active, self.weight, 0.0))
            rate = np.minimum(demand, self.weight * np.where(full, level, np.inf))
        growth = np.where(full & (inflow >= rows.link), 0.0, inflow - rows.link)
        # `floor` is the capacity while a burst waits for room, else zero: the next thing that happens to a backlog.
        with np.errstate(divide="ignore", invalid="ignore"):
            until = np.where(active, (self.backlog - self.floor) / rate, np.inf)
            filled = np.where(growth > 0, (rows.buffer - self.level) / growth, np.inf)
        ahead = np.minimum(until, self.due - self.now)
        nearest = ahead.min(axis=0)
        busy = np.isfinite(nearest)
        dt = np.where(busy, np.minimum(np.maximum(nearest, 0.0), filled), 0.0)
        happened = ahead <= dt + _TIE
        begun = self.now
        self.now = begun + dt
        self.backlog = np.maximum(self.backlog - rate * dt, 0.0)
        self.level = np.clip(self.level + growth * dt, 0.0, rows.buffer)
        unit, col = np.nonzero(happened & busy)
        if unit.size:
            where = (unit, col)
            self._settle(rows, out, columns, where, until[where], rate[where], begun[col], dt[col])
        return np.asarray(busy)

    def _settle(
        self,
        rows: FluidColumns,
        out: FluidSolution,
        columns: IntArray,
        where: tuple[IntArray, IntArray],
        until: FloatArray,
        rate: FloatArray,
        begun: FloatArray,
        dt: FloatArray,
    ) -> None:
        """Handle what is due now: a waiting burst that has room, a queue that ran empty, a burst that begins."""
        unit, col = where
        waiting = self.floor[where] > 0
        crossed = waiting & (until <= dt + _TIE)
        arrived = ~waiting & (self.due[where] <= begun + dt + _TIE)
        emptied = ~waiting & ~arrived & (until <= dt + _TIE)
        if emptied.any():
            self.backlog[unit[emptied], col[emptied]] = 0.0
        if crossed.any():
            at = (unit[crossed], col[crossed])
            self._finish(rows, out, columns, at, begun[crossed] + until[crossed] + rows.credit[at[1]], rate[crossed])
        if arrived.any():
            at = (unit[arrived], col[arrived])
            begin, free = self.begin[at], rows.free[self.burst[at], at[1]]
            before = self.backlog[at]
            # A unit whose queue empties within a tie is idle, and gets what producers get who all start together, as in `calm`.
            carried = before > _TIE * rate[arrived]
            alike = np.minimum(rows.sm_rate[at[1]], rows.link[at[1]] / rows.members.sum(axis=0)[at[1]]) * rows.members[at]
            draining = np.where(carried, rate[arrived], alike)
            self.backlog[at] = before + rows.load[self.burst[at], at[1]] * rows.members[at]
            self.due[at] = np.inf
            # Service differs by an amount of bytes, not by a rate that lasts: long bursts are served more alike.
            long = rows.load[self.burst[at], at[1]] / rows.evens_out[at[1]]
            self.weight[at] = rows.multiple[at] * rows.weight[at] ** (1.0 / (1.0 + long))
            over = self.backlog[at] - rows.capacity[at] - rows.unheld[self.burst[at], at[1]] * rows.members[at]
            # A unit that was draining learns of its room a credit late, and its SMs differ: some stall although the mean has room.
            ahead = draining * (rows.credit[at[1]] - free)
            blur = rows.blur[at[1]] * before + 1e-9
            over = np.where(carried, blur * np.logaddexp(0.0, (over + ahead) / blur) - ahead, over)
            full = over > 0
            held = (at[0][full], at[1][full])
            self.floor[held] = np.maximum(self.backlog[held] - over[full], 1e-6)
            if not full.all():
                known = np.where(carried, begin + rows.credit[at[1]] + over / draining, 0.0)
                at = (at[0][~full], at[1][~full])
                self._finish(rows, out, columns, at, known[~full], draining[~full])

    def _finish(
        self, rows: FluidColumns, out: FluidSolution, columns: IntArray, at: tuple[IntArray, IntArray], room: FloatArray, rate: FloatArray
    ) -> None:
        """Close the bursts of these units, which had room for their last store at `room`, and plan their next start."""
        unit, col = at
        burst, begin = self.burst[at], self.begin[at]
        end = begin + rows.free[burst, col]
        stalled = room > end + _TIE  # not by rounding: `room` is often `end` by another way of adding it up
        end = np.maximum(end, room)
        slot = (burst, unit, columns[col])
        left = np.maximum(self.backlog[at] - rate * (end - self.now[col]), 0.0)
        out.start[slot] = begin
        out.end[slot] = end
        out.left[slot] = left
        out.drained[slot] = end + left / rate + self.level[col] / rows.link[col]
        self.floor[at] = 0.0
        following = np.minimum(burst + 1, rows.load.shape[0] - 1)
        # What the stamp leaves behind or overtakes is in the way of the next burst's first instructions.
        behind = rows.stall_turnaround[col] * rows.store_bytes[col] + rows.unheld[burst, col]
        least = rows.turnaround[col] + np.where(stalled, np.maximum(behind * (rows.members[at] / rate - 1.0 / rows.sm_rate[col]), 0.0), 0.0)
        after_gap = end + np.maximum(least, rows.gap[following, col] + rows.gap_overhead[col])
        on_time = np.maximum(end + least, rows.deadline[following, col])
        start = np.where(rows.rule[col] == TIMED, on_time, after_gap)
        more = burst + 1 < rows.bursts[col]
        self.burst[at] = burst + 1
        self.begin[at] = np.where(more, start, np.inf)
        self.due[at] = self.begin[at]
