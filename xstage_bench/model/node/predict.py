"""From Schedules to predictions: a column of the event loop for each schedule, and one for each isolated burst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError
from xstage_bench.model.node.calm import calm, calm_solution
from xstage_bench.model.node.fluid import FREE, TIMED, Rows, Solution, solve
from xstage_bench.model.node.issue import free_cycles
from xstage_bench.model.node.parameters import NodeModel
from xstage_bench.schedule import Schedule

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
ALONE = 0
RULES = {"isolated": ALONE, "free": FREE, "timed": TIMED}
#: A burst is called stalled when it takes longer than this many times its T0.
STALLED = 1.1
#: Room differs between the SMs of a draining unit by this times the service spread, relative to its backlog.
BLUR = 0.3
#: Bytes per producer beyond which units are served more and more alike: their service differs by an amount, not by a lasting rate.
EVENS_OUT_BYTES = 128e3
BATCH = 512  # columns solved in step: numpy's calls are paid once for all, and the state stays in the cache


@dataclass(frozen=True, slots=True, eq=False)
class NodePrediction:
    """Predictions of several schedules; all arrays but `first` have one entry per burst, schedule after schedule.

    Parameters
    ----------
    first : ndarray of int, shape (schedules + 1,)
        Bursts of schedule i are ``first[i]:first[i + 1]``.
    t0_cycles : ndarray
        Issue time without backpressure from the link.
    issue_cycles, issue_max_cycles : ndarray
        Mean over producers, and the slowest.
    start_ns, end_ns : ndarray
        Mean start over producers, and the latest end, after the schedule's time zero; of an isolated burst, after its own.
    spread_ns : ndarray
        Latest start less earliest.
    backlog_bytes : ndarray
        Not yet drained when a producer's issue ends, summed over producers.
    visible_ns : ndarray
        When the last byte of the burst has arrived and its SM knows it.
    sm_clock_mhz : float
    """

    first: IntArray
    t0_cycles: FloatArray
    issue_cycles: FloatArray
    issue_max_cycles: FloatArray
    start_ns: FloatArray
    end_ns: FloatArray
    spread_ns: FloatArray
    backlog_bytes: FloatArray
    visible_ns: FloatArray
    sm_clock_mhz: float

    @property
    def stall_cycles(self) -> FloatArray:
        """What backpressure adds to each burst."""
        return np.maximum(self.issue_cycles - self.t0_cycles, 0.0)

    @property
    def stalled(self) -> NDArray[np.bool_]:
        """More than 10 % above T0."""
        return np.asarray(self.issue_cycles > STALLED * self.t0_cycles)

    def total_ns(self, isolated: NDArray[np.bool_]) -> FloatArray:
        """Time line of each schedule: mean start plus mean issue of the last burst; of isolated ones the sum of their issue times."""
        issue = self.issue_cycles * 1e3 / self.sm_clock_mhz
        last = self.first[1:] - 1
        return np.where(isolated, np.add.reduceat(issue, self.first[:-1]), self.start_ns[last] + issue[last])


def predict_node(model: NodeModel, schedules: Sequence[Schedule], *, sm_clock_mhz: float | None = None) -> NodePrediction:
    """Predict schedules of the model's pair.

    Parameters
    ----------
    model : NodeModel
    schedules : sequence of Schedule
        Of any K (a count is spread evenly over the map's smids), W, start rule and length.
    sm_clock_mhz : float, optional
        Default is the model's. What the SM does scales with it, what the link does not.

    Returns
    -------
    NodePrediction

    Raises
    ------
    UsageError
        The clock is not positive, or a schedule asks for SMs that the map lacks.
    """
    clock = model.sm_clock_mhz if sm_clock_mhz is None else float(sm_clock_mhz)
    if not (np.isfinite(clock) and clock > 0):
        raise UsageError(f"sm_clock_mhz is {sm_clock_mhz}, must be positive", f"the model's own is {model.sm_clock_mhz:g}")
    table = _Table.of(model, schedules)
    count = int(table.first[-1])
    out = {name: np.zeros(count) for name in ("issue", "slowest", "start", "end", "spread", "left", "drained")}
    for columns in _batches(table):
        rows = _rows(model, table, columns, clock)
        quiet, start, end, left = calm(rows)
        for chosen, still in ((np.flatnonzero(quiet), True), (np.flatnonzero(~quiet), False)):
            if chosen.size:
                part = rows.take(chosen)
                found = calm_solution(part, start[:, chosen], end[:, chosen], left[:, chosen]) if still else solve(part)
                _collect(out, table, columns[chosen], part, found)
    per_ns = 1e3 / clock
    lag = model.issue.start_lag_ns
    return NodePrediction(
        first=table.first,
        t0_cycles=model.t0_cycles(table.warps_of_burst, table.stores, table.fresh),
        issue_cycles=out["issue"],
        issue_max_cycles=out["slowest"],
        start_ns=out["start"] * per_ns + lag,
        end_ns=out["end"] * per_ns + lag,
        spread_ns=out["spread"] * per_ns,
        backlog_bytes=out["left"],
        visible_ns=(out["drained"] + model.credit_cycles) * per_ns + lag,
        sm_clock_mhz=clock,
    )


@dataclass(slots=True)
class _Table:
    """The schedules as arrays: per burst size, T0, gap and start; per column (a schedule, or an isolated burst) where its bursts are."""

    first: IntArray
    load: FloatArray
    stores: IntArray
    gap: FloatArray
    start_ns: FloatArray
    fresh: NDArray[np.bool_]
    warps_of_burst: IntArray
    free: FloatArray
    column_first: IntArray
    column_bursts: IntArray
    column_owner: IntArray
    rule: IntArray
    store_bytes: FloatArray
    members: IntArray

    @classmethod
    def of(cls, model: NodeModel, schedules: Sequence[Schedule]) -> _Table:
        lengths = np.array([len(s.bursts) for s in schedules], dtype=np.int64)
        first = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        flat = np.array([(b.bytes, b.gap_cycles, b.start_ns) for s in schedules for b in s.bursts], dtype=np.float64).reshape(-1, 3)
        rule = np.array([RULES[s.start] for s in schedules], dtype=np.int64)
        warps = np.array([s.warps for s in schedules], dtype=np.int64)
        unit = np.array([s.warp_store_bytes for s in schedules], dtype=np.float64)
        owner = np.repeat(np.arange(len(schedules)), lengths)
        fresh = (rule[owner] == ALONE) | (np.arange(owner.size) == first[owner])
        stores = (flat[:, 0] / (warps * unit)[owner]).astype(np.int64)
        split = np.where(rule == ALONE, lengths, 1)
        column_owner = np.repeat(np.arange(len(schedules)), split)
        within = np.arange(column_owner.size) - np.repeat(np.cumsum(split) - split, split)
        smids = model.placement.smids
        known: dict[object, IntArray] = {}
        for s in schedules:
            if s.producers not in known:
                known[s.producers] = model.placement.members(s.smids(smids))
        return cls(
            first=first,
            load=flat[:, 0],
            stores=stores,
            gap=flat[:, 1],
            start_ns=flat[:, 2],
            fresh=fresh,
            warps_of_burst=warps[owner],
            free=free_cycles(model.issue, model.issue_cycles_per_store, warps[owner], stores, fresh),
            column_first=first[column_owner] + within,
            column_bursts=np.where(rule == ALONE, 1, lengths)[column_owner],
            column_owner=column_owner,
            rule=rule[column_owner],
            store_bytes=unit[column_owner],
            members=np.array([known[s.producers] for s in schedules], dtype=np.int64).reshape(len(schedules), -1),
        )


def _batches(table: _Table) -> list[IntArray]:
    """Columns that go together: of like length, since shorter ones only wait, and of as many active units."""
    units = (table.members > 0).sum(axis=1)[table.column_owner]
    order = np.lexsort((units, table.column_bursts))
    return [order[i : i + BATCH] for i in range(0, order.size, BATCH)]


def _rows(model: NodeModel, table: _Table, columns: IntArray, clock: float) -> Rows:
    """Return the columns to solve, their units in the order that the loop wants."""
    members = table.members[table.column_owner[columns]].T.astype(np.float64)
    weight = np.broadcast_to(model.weights()[:, None], members.shape)
    order = np.argsort(np.where(members > 0, members / weight, np.inf), axis=0, kind="stable")[: int((members > 0).sum(axis=0).max())]
    members = np.take_along_axis(members, order, axis=0)
    weight = np.take_along_axis(weight, order, axis=0)
    length = int(table.column_bursts[columns].max())
    index = table.column_first[columns] + np.arange(length)[:, None]
    inside = np.arange(length)[:, None] < table.column_bursts[columns]
    index = np.where(inside, index, table.column_first[columns])
    link = model.link_bytes_per_cycle(clock)
    load = table.load[index]

    def same(value: float) -> FloatArray:
        return np.full(columns.size, value)

    return Rows(
        members=members,
        weight=weight,
        capacity=model.unit_capacity(members),
        load=load,
        free=table.free[index],
        gap=table.gap[index],
        deadline=table.start_ns[index] * clock / 1e3,
        bursts=table.column_bursts[columns],
        rule=table.rule[columns],
        link=same(link),
        sm_rate=same(model.sm_bytes_per_cycle),
        buffer=same(model.link_buffer_bytes),
        credit=same(model.credit_cycles),
        turnaround=same(model.issue.turnaround),
        gap_overhead=same(model.issue.gap_overhead),
        stall_turnaround=same(model.issue.stall_turnaround),
        store_bytes=table.store_bytes[columns],
        blur=same(BLUR * model.service_spread),
        evens_out=same(EVENS_OUT_BYTES),
    )


def _collect(out: dict[str, FloatArray], table: _Table, columns: IntArray, rows: Rows, found: Solution) -> None:
    members = rows.members
    length = rows.load.shape[0]
    inside = np.arange(length)[:, None] < table.column_bursts[columns]
    to = (table.column_first[columns] + np.arange(length)[:, None])[inside]
    producing = members > 0
    share = members / members.sum(axis=0)

    def mean(x: FloatArray) -> FloatArray:
        return np.asarray((np.where(producing, x, 0.0) * share).sum(axis=1)[inside])

    def most(x: FloatArray) -> FloatArray:
        return np.asarray(np.where(producing, x, -np.inf).max(axis=1)[inside])

    issue = found.end - found.start
    out["issue"][to] = mean(issue)
    out["slowest"][to] = most(issue)
    out["start"][to] = mean(found.start)
    out["end"][to] = most(found.end)
    out["spread"][to] = most(found.start) + most(-found.start)
    out["left"][to] = np.where(producing, found.left, 0.0).sum(axis=1)[inside]
    out["drained"][to] = most(found.drained)
