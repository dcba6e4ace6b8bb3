"""From Schedules to predictions: a column of the event loop for each schedule, and one for each isolated burst."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from xstage_bench.model.arrays import BoolArray, FloatArray, IntArray
from xstage_bench.model.burst_gap import STALLED, asked_clock
from xstage_bench.model.node.calm import calm, calm_solution
from xstage_bench.model.node.classes import LEVELS, unit_table
from xstage_bench.model.node.compiled import choose_loop, solve_compiled
from xstage_bench.model.node.fluid import FluidColumns, FluidSolution, solve
from xstage_bench.model.node.issue import free_cycles
from xstage_bench.model.node.loop import Constants
from xstage_bench.model.node.packed import RULES, PackedSchedules, pack
from xstage_bench.model.node.parameters import NodeModel
from xstage_bench.schedule.bursts import Schedule

ALONE, TIMED = RULES["isolated"], RULES["timed"]
#: Room differs between the SMs of a draining unit by this times the service spread, relative to its backlog.
BLUR = 0.3
#: Bytes per producer beyond which units are served more and more alike: their service differs by an amount, not by a lasting rate.
EVENS_OUT_BYTES = 128e3
RESULTS = ("issue", "slowest", "start", "end", "spread", "left", "drained")
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
    def stalled(self) -> BoolArray:
        """More than 10 % above T0."""
        return np.asarray(self.issue_cycles > STALLED * self.t0_cycles)

    def total_ns(self, isolated: BoolArray) -> FloatArray:
        """Time line of each schedule: mean start plus mean issue of the last burst; of isolated ones the sum of their issue times."""
        issue = self.issue_cycles * 1e3 / self.sm_clock_mhz
        last = self.first[1:] - 1
        return np.where(isolated, np.add.reduceat(issue, self.first[:-1]), self.start_ns[last] + issue[last])


def predict_node(
    model: NodeModel,
    schedules: Sequence[Schedule],
    *,
    sm_clock_mhz: float | None = None,
    exact: bool = True,
    compiled: bool | None = None,
) -> NodePrediction:
    """Predict schedules of the model's pair.

    Parameters
    ----------
    model : NodeModel
    schedules : sequence of Schedule
        Of any K (a count is spread evenly over the map's smids), W, start rule and length.
    sm_clock_mhz : float, optional
        Default is the model's. What the SM does scales with it, what the link does not.
    exact : bool
        False takes units of near weight together (`classes`): three times as fast for a small error.
    compiled : bool, optional
        Whether the event loop is the compiled one, which needs numba and gives the same numbers. Default: when there is numba, and enough
        to predict to be worth loading it.

    Returns
    -------
    NodePrediction

    Raises
    ------
    UsageError
        The clock is not positive, a schedule asks for SMs that the map lacks, or `compiled` is asked for and cannot be had.
    """
    return predict_packed(model, pack(schedules), sm_clock_mhz=sm_clock_mhz, exact=exact, compiled=compiled)


def predict_packed(
    model: NodeModel, packed: PackedSchedules, *, sm_clock_mhz: float | None = None, exact: bool = True, compiled: bool | None = None
) -> NodePrediction:
    """Predict schedules that are arrays already; otherwise as `predict_node`."""
    clock = asked_clock(model.sm_clock_mhz, sm_clock_mhz)
    table = _Table.of(model, packed, None if exact else LEVELS)
    loop = choose_loop(compiled, table.free.size, table.classes.shape[2])
    if loop is None:
        out = _solve_batches(model, table, clock)
    else:
        deadline = packed.start_ns * clock / 1e3
        out = solve_compiled(loop, table.packed, table.free, deadline, table.unheld, table.units, table.classes, _constants(model, clock))
    drained = np.maximum(out["drained"], _carried(packed, model.link_bytes_per_cycle(clock), clock))
    per_ns = 1e3 / clock
    lag = model.issue.start_lag_ns
    return NodePrediction(
        first=packed.first,
        t0_cycles=model.t0_cycles(table.warps_of_burst, table.stores, table.fresh, table.free),
        issue_cycles=out["issue"],
        issue_max_cycles=out["slowest"],
        start_ns=out["start"] * per_ns + lag,
        end_ns=out["end"] * per_ns + lag,
        spread_ns=out["spread"] * per_ns,
        backlog_bytes=out["left"],
        visible_ns=(drained + model.credit_cycles) * per_ns + lag,
        sm_clock_mhz=clock,
    )


def _carried(packed: PackedSchedules, link: float, clock: float) -> FloatArray:
    """Return the earliest time at which the link can have carried all bytes up to each burst, in cycles.

    The event loop extrapolates the drain of a burst from the rates at the end of its issue. Other units that begin or end later change
    those, and a last byte came out up to 12 % before the link could have moved it.
    """
    producers = np.array([p if isinstance(p, int) else len(p) for p in packed.sets], dtype=np.float64)[packed.producers]
    owner = packed.owner
    volume = packed.bytes * producers[owner]
    total = np.cumsum(volume)
    before = np.concatenate([[0.0], total])[packed.first[:-1]]
    through = np.where(packed.rule[owner] == ALONE, volume, total - before[owner])
    begin = np.where(packed.rule == TIMED, packed.start_ns[packed.first[:-1]] * clock / 1e3, 0.0)
    return np.asarray(begin[owner] + through / link)


def _constants(model: NodeModel, clock: float) -> Constants:
    return Constants(
        link=model.link_bytes_per_cycle(clock),
        sm_rate=model.sm_bytes_per_cycle,
        buffer=model.link_buffer_bytes,
        credit=model.credit_cycles,
        turnaround=float(model.issue.turnaround),
        gap_overhead=float(model.issue.gap_overhead),
        stall_turnaround=float(model.issue.stall_turnaround),
        blur=BLUR * model.service_spread,
        evens_out=EVENS_OUT_BYTES,
    )


@dataclass(slots=True)
class _Table:
    """What follows from the schedules: T0 of each burst, classes of units of each set of producers, and the columns of the event loop: a
    schedule each, or an isolated burst.
    """

    packed: PackedSchedules
    stores: IntArray
    fresh: BoolArray
    warps_of_burst: IntArray
    free: FloatArray
    unheld: FloatArray
    units: IntArray
    classes: FloatArray

    @classmethod
    def of(cls, model: NodeModel, packed: PackedSchedules, levels: int | None) -> _Table:
        owner = packed.owner
        warps = packed.warps[owner]
        fresh = packed.rule[owner] == ALONE
        fresh[packed.first[:-1]] = True
        stores = (packed.bytes / (packed.warps * packed.store_bytes)[owner]).astype(np.int64)
        queued: FloatArray | float = 0.0
        if model.issue.queue_operations:
            packed, warps_of_set = packed.by_warps()
            queued = model.issue.queue_bytes(warps_of_set)
        units, classes = unit_table(model, packed.members(model.placement), levels, queued)
        free = free_cycles(model.issue, model.issue_cycles_per_store, warps, stores, fresh)
        unheld = model.issue.unheld_bytes(warps, stores)
        return cls(packed, stores, fresh, warps, free, unheld, units, classes)


@dataclass(slots=True)
class _Columns:
    """First burst, number of bursts and schedule of each column."""

    first: IntArray
    bursts: IntArray
    owner: IntArray

    @classmethod
    def of(cls, packed: PackedSchedules) -> _Columns:
        lengths = np.diff(packed.first)
        split = np.where(packed.rule == ALONE, lengths, 1)
        owner = np.repeat(np.arange(packed.rule.size), split)
        within = np.arange(owner.size) - np.repeat(np.cumsum(split) - split, split)
        return cls(packed.first[owner] + within, np.where(packed.rule == ALONE, 1, lengths)[owner], owner)

    def batches(self, units: IntArray) -> list[_Columns]:
        """Columns that go together: of like length, since shorter ones only wait, and of as many active units."""
        order = np.lexsort((units[self.owner], self.bursts))
        parts = (order[i : i + BATCH] for i in range(0, order.size, BATCH))
        return [self.take(part) for part in parts]

    def take(self, chosen: IntArray) -> _Columns:
        return _Columns(self.first[chosen], self.bursts[chosen], self.owner[chosen])


def _solve_batches(model: NodeModel, table: _Table, clock: float) -> dict[str, FloatArray]:
    """Predict by numpy's event loop."""
    out = {name: np.zeros(table.free.size) for name in RESULTS}
    constants = _constants(model, clock)
    for columns in _Columns.of(table.packed).batches(table.units[table.packed.producers]):
        rows = _rows(table, columns, constants, clock)
        quiet, start, end, left = calm(rows)
        for chosen, still in ((np.flatnonzero(quiet), True), (np.flatnonzero(~quiet), False)):
            if chosen.size:
                part = rows.take(chosen)
                found = calm_solution(part, start[:, chosen], end[:, chosen], left[:, chosen]) if still else solve(part)
                _collect(out, columns.take(chosen), part, found)
    return out


def _rows(table: _Table, columns: _Columns, constants: Constants, clock: float) -> FluidColumns:
    """Return the columns to solve."""
    packed = table.packed
    sets = packed.producers[columns.owner]
    members, capacity, multiple, log_weight = table.classes[sets, :, : int(table.units[sets].max())].transpose(1, 2, 0)
    step = np.arange(int(columns.bursts.max()))[:, None]
    index = np.where(step < columns.bursts, columns.first + step, columns.first)
    return FluidColumns(
        members=members,
        weight=np.exp(log_weight),
        multiple=multiple,
        capacity=capacity,
        load=packed.bytes[index],
        free=table.free[index],
        gap=packed.gap_cycles[index],
        deadline=packed.start_ns[index] * clock / 1e3,
        unheld=table.unheld[index],
        bursts=columns.bursts,
        rule=packed.rule[columns.owner],
        store_bytes=packed.store_bytes[columns.owner],
        **{name: np.full(columns.first.size, value) for name, value in constants._asdict().items()},
    )


def _collect(out: dict[str, FloatArray], columns: _Columns, rows: FluidColumns, found: FluidSolution) -> None:
    members = rows.members
    length = rows.load.shape[0]
    inside = np.arange(length)[:, None] < columns.bursts
    to = (columns.first + np.arange(length)[:, None])[inside]
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
