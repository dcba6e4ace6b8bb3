"""The event loop: fluid queues with rates that are constant between events, many schedules in step.

Cumulative bytes of a class: A(t) admitted, D(t) drained. An SM may have `capacity` bytes that are not yet known to be drained, and the
news of a drain (the credit) takes `credit` cycles to come back, so burst i, after which A_i bytes are admitted, ends at

    e_i = max(s_i + T0_i,  t* + credit),    t* the time at which D(t*) = A_i - capacity,

its start s_i follows from e_(i-1) by the schedule's rule, and the bytes of a burst are there to drain `latency` cycles after its start (the
port fills the queue at least as fast as one SM can drain it). Each iteration moves every schedule to its own next event: a class's burst
arrives, its backlog falls to the capacity (t*), or its queue runs empty. The state between events is exact, so there is no step size.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.sim.arbiter import Array, rates

ALONE, FREE, TIMED = 0, 1, 2
_TIE = 0.5  # cycles: events closer than this are taken together
_COMPACT = 0.7  # drop finished schedules when fewer than this share are left


@dataclass(slots=True)
class Rows:
    """What to solve: one column per schedule (or per isolated burst). S schedules, N bursts at most, classes (G, M, 2).

    Parameters
    ----------
    members : ndarray, shape (G, M, 2, S)
        Producers of each class; 0 where the schedule has none.
    capacity : ndarray, shape (G, M, 2, S)
        Bytes that one SM may have outstanding.
    load, port : ndarray, shape (N, S)
        Bytes per producer and free issue time in cycles of each burst.
    gap, deadline : ndarray, shape (N, S)
        Cycles between bursts (free), start time in cycles (timed).
    unawaited : ndarray, shape (N, S)
        Bytes of one SM's burst that its end of issue does not wait for.
    bursts, rule : ndarray of int, shape (S,)
    link, group, sm_rate, buffer, latency, credit, turnaround : ndarray, shape (S,)
        Bytes per cycle of the link, one group and one SM, bytes, then cycles; `turnaround` is what the instrument needs between
        two timed bursts.
    """

    members: Array
    capacity: Array
    load: Array
    port: Array
    gap: Array
    deadline: Array
    unawaited: Array
    bursts: NDArray[np.int64]
    rule: NDArray[np.int64]
    link: Array
    group: Array
    sm_rate: Array
    buffer: Array
    latency: Array
    credit: Array
    turnaround: Array

    def take(self, keep: NDArray[np.int64]) -> Rows:
        """Return these columns only."""
        return Rows(**{f.name: np.ascontiguousarray(getattr(self, f.name)[..., keep]) for f in fields(self)})


@dataclass(slots=True)
class Solution:
    """Start and end of issue of each burst and class, and when the class's last byte has drained; cycles. NaN where there is no producer.

    `start`, `end`: shape (N, G, M, 2, S). `drained`: shape (G, M, 2, S), when a fence after the last burst sees everything drained.
    `path`, for exemplars only: times and cumulative drained bytes per class, shapes (events,) and (events, G, M, 2).
    """

    start: Array
    end: Array
    drained: Array
    path: tuple[Array, Array] | None = None


def solve(rows: Rows, *, record: bool = False) -> Solution:
    """Run every schedule to its end.

    Parameters
    ----------
    rows : Rows
        At least two columns.
    record : bool
        Keep the drained bytes at every event (one schedule only).
    """
    n, s = rows.load.shape
    shape = rows.members.shape[:-1]
    result = Solution(np.full((n, *shape, s), np.nan), np.full((n, *shape, s), np.nan), np.full((*shape, s), np.nan))
    path: list[tuple[float, Array]] = []
    columns = np.arange(s)
    state = _State.fresh(rows)
    while columns.size:
        dt = state.next_event(rows)
        if record:
            path.append((float(state.now[0]), state.drained[..., 0].copy()))
        done = ~np.isfinite(dt)
        if done.all() or (columns.size > 2 and np.count_nonzero(~done) < _COMPACT * columns.size):
            left = np.flatnonzero(done)
            result.drained[..., columns[left]] = np.maximum(state.empty_at, state.fence_at)[..., left]
            keep = np.flatnonzero(~done)
            # Never a single column: numpy would then sum in another order, and a course would depend on its company.
            keep = np.append(keep, left[:1]) if keep.size == 1 else keep
            rows, columns = rows.take(keep), columns[keep]
            state = state.take(keep)
            continue
        state.advance(rows, np.where(done, 0.0, dt))
        state.settle(rows, result, columns)
    if record:
        result.path = (np.array([t for t, _ in path]), np.array([d for _, d in path]))
    return result


@dataclass(slots=True)
class _State:
    """Where every class is, shape (G, M, 2, S), and the link's buffer, shape (S,).

    `backlog` and `drained` bytes, `burst` index, `begin` of the burst, `arrival` of its bytes (inf when none is due), `waiting` for the
    backlog to fall to what is `allowed` when the burst ends (the capacity, and what its end does not wait for), `empty_at` the time at
    which the last byte left the link, `fence_at` the time at which all that was outstanding on the whole GPU at the end of issue has left
    it: a system-scope fence waits for that too, since fences are cumulative.
    """

    now: Array
    level: Array
    backlog: Array
    drained: Array
    burst: NDArray[np.int64]
    begin: Array
    arrival: Array
    waiting: NDArray[np.bool_]
    allowed: Array
    empty_at: Array
    fence_at: Array
    rate: Array
    growth: Array

    @classmethod
    def fresh(cls, rows: Rows) -> _State:
        shape = rows.members.shape
        has = rows.members > 0
        first = np.where(rows.rule == TIMED, rows.deadline[0], 0.0)
        begin = np.where(has, first, np.inf)
        return cls(
            np.zeros(shape[-1]), np.zeros(shape[-1]), np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.int64), begin,
            begin + rows.latency, np.zeros(shape, dtype=bool), rows.capacity.copy(), np.zeros(shape), np.zeros(shape), np.zeros(shape),
            np.zeros(shape[-1]),
        )  # fmt: skip

    def take(self, keep: NDArray[np.int64]) -> _State:
        return _State(**{f.name: np.ascontiguousarray(getattr(self, f.name)[..., keep]) for f in fields(self)})

    def next_event(self, rows: Rows) -> Array:
        """Return the cycles until each schedule's next event; inf when it has none left."""
        full = self.level >= rows.buffer * (1 - 1e-9)
        # While the buffer before the link has room, nothing but their own rates holds the SMs back.
        bound = np.where(full, rows.link, np.inf)
        self.rate = rates(self.backlog > 0, rows.members, bound, rows.sm_rate, rows.group)
        inflow = (self.rate * rows.members).sum(axis=(0, 1, 2))
        self.growth = np.where(full & (inflow >= rows.link), 0.0, inflow - rows.link)
        target = np.where(self.waiting, self.allowed, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            until = np.where(self.rate > 0, (self.backlog - target) / self.rate, np.inf)
            filled = np.where(self.growth > 0, (rows.buffer - self.level) / self.growth, np.inf)
        until = np.minimum(until, self.arrival - self.now)
        return np.asarray(np.maximum(np.minimum(until.min(axis=(0, 1, 2)), filled), 0.0))

    def advance(self, rows: Rows, dt: Array) -> None:
        self.now = self.now + dt
        moved = np.minimum(self.rate * dt, self.backlog)
        self.backlog = self.backlog - moved
        self.drained = self.drained + moved
        self.level = np.clip(self.level + self.growth * dt, 0.0, rows.buffer)

    def settle(self, rows: Rows, result: Solution, columns: NDArray[np.int64]) -> None:
        """Handle what is due now: backlogs at the capacity, empty queues, arrivals."""
        slack = self.rate * _TIE
        crossed = self.waiting & (self.backlog <= self.allowed + slack)
        emptied = (self.rate > 0) & (self.backlog <= np.where(self.waiting, 0.0, slack)) & ~crossed
        if emptied.any():
            self.drained = np.where(emptied, self.drained + self.backlog, self.drained)
            self.backlog = np.where(emptied, 0.0, self.backlog)
            self.empty_at = np.where(emptied, self.now + self.level / rows.link, self.empty_at)
        if crossed.any():
            self._finish(rows, result, columns, np.nonzero(crossed), credit=True)
        due = self.arrival <= self.now + _TIE
        if due.any():
            where = np.nonzero(due)
            self.backlog[where] += rows.load[self.burst[where], where[-1]]
            self.arrival[where] = np.inf
            self.empty_at[where] = self.now[where[-1]]
            self.allowed[where] = rows.capacity[where] + rows.unawaited[self.burst[where], where[-1]]
            full = self.backlog[where] > self.allowed[where]
            self.waiting[tuple(w[full] for w in where)] = True
            if not full.all():
                self._finish(rows, result, columns, tuple(w[~full] for w in where), credit=False)

    def _finish(
        self, rows: Rows, result: Solution, columns: NDArray[np.int64], where: tuple[NDArray[np.int64], ...], *, credit: bool
    ) -> None:
        """Close the bursts at these indices and plan the next start of the same classes."""
        col = where[-1]
        burst, begin = self.burst[where], self.begin[where]
        end = begin + rows.port[burst, col]
        if credit:
            end = np.maximum(end, self.now[col] + rows.credit[col])
        self.waiting[where] = False
        outstanding = (np.minimum(self.backlog, rows.capacity) * rows.members).reshape(-1, self.now.size).sum(axis=0) + self.level
        self.fence_at[where] = (self.now + outstanding / rows.link)[col]
        at = (burst, *where[:-1], columns[col])
        result.start[at] = begin
        result.end[at] = end
        following = np.minimum(burst + 1, rows.load.shape[0] - 1)
        after_gap = end + rows.gap[following, col]
        on_time = np.maximum(end + rows.turnaround[col], rows.deadline[following, col])
        start = np.where(rows.rule[col] == TIMED, on_time, after_gap)
        more = burst + 1 < rows.bursts[col]
        self.burst[where] = burst + 1
        self.begin[where] = start
        self.arrival[where] = np.where(more, start + rows.latency[col], np.inf)
