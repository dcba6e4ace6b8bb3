"""From Schedules to the event loop and back: which rows to solve, and which class each producer belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.sim.arbiter import Array
from xstage_bench.device.sim.fluid import ALONE, FREE, TIMED, Rows, Solution, solve
from xstage_bench.device.sim.port import issue_cycles
from xstage_bench.device.sim.presets import Groups, Preset
from xstage_bench.schedule.bursts import HOST, Schedule

_UNSHARED = 1e9  # bytes per cycle: no limit
_BATCH = 512  # rows solved in step: wide enough to hide the cost of a numpy call, narrow enough to bound memory
_RULES = {"isolated": ALONE, "free": FREE, "timed": TIMED}


@dataclass(frozen=True, slots=True)
class Conditions:
    """What multiplies a preset's parameters here and now: the process, the pair's link, the SM clock."""

    link: float = 1.0
    capacity: float = 1.0
    clock: float = 1.0


@dataclass(frozen=True, slots=True)
class Ideal:
    """The noiseless course of one schedule; cycles after its time zero (after each burst's own start, when isolated).

    `start`, `end`, `backlogged`: shape (N, K); the last is the time from the end of issue until the producer's last byte has drained,
    NaN where no fence is executed. `free`: shape (N,), the burst's cost without any stall. `drift`: shape (N, K), what the issue time is
    longer by because the warps of a producer run apart.
    """

    smids: NDArray[np.int64]
    start: Array
    end: Array
    backlogged: Array
    free: Array
    drift: Array

    def issue(self) -> Array:
        """Return the issue time of each burst and producer, shape (N, K): the drift of the warps included."""
        return self.end - self.start + self.drift


def places(groups: Groups, smids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return group, subgroup and neighbour (0 alone in the pair, 1 both) of each producer; shape (3, K)."""
    pair = smids // 2
    both = (np.isin(smids ^ 1, smids)).astype(np.int64)
    table = np.zeros((2, 1 + max(p for g in groups for m in g for p in m)), dtype=np.int64)
    for i, group in enumerate(groups):
        for j, members in enumerate(group):
            table[:, list(members)] = [[i], [j]]
    return np.stack([table[0, pair], table[1, pair], both])


def run(preset: Preset, schedules: Sequence[Schedule], conditions: Conditions) -> list[Ideal]:
    """Solve schedules of one source and destination, all in step.

    Parameters
    ----------
    preset : Preset
    schedules : sequence of Schedule
    conditions : Conditions

    Returns
    -------
    list of Ideal
    """
    prepared = [_Prepared.of(preset, s) for s in schedules]
    jobs = [(p, list(bursts)) for p in prepared for bursts in p.jobs()]
    # Schedules of like length go together: the shorter ones of a batch only wait for the longest.
    order = sorted(range(len(jobs)), key=lambda j: len(jobs[j][1]))
    courses: list[_Course] = [None] * len(jobs)  # type: ignore[list-item]
    for i in range(0, len(order), _BATCH):
        batch = order[i : i + _BATCH]
        columns = batch if len(batch) > 1 else batch * 2  # `solve` wants two at least
        solution = solve(_rows(preset, [jobs[j] for j in columns], conditions))
        for column, j in enumerate(batch):
            courses[j] = _course(*jobs[j], solution, column)
    out, at = [], 0
    for p in prepared:
        n = len(p.jobs())
        out.append(_collect(preset, p, courses[at : at + n], conditions.clock))
        at += n
    return out


@dataclass(slots=True)
class _Prepared:
    schedule: Schedule
    smids: NDArray[np.int64]
    place: NDArray[np.int64]
    free: Array
    members: Array

    @classmethod
    def of(cls, preset: Preset, schedule: Schedule) -> _Prepared:
        smids = schedule.smids(preset.smids)
        place = places(preset.groups, smids)
        members = np.zeros((len(preset.groups), max(map(len, preset.groups)), 2))
        np.add.at(members, tuple(place), 1.0)
        free = issue_cycles(preset.port, schedule.warps, schedule.stores_per_warp()) + preset.closing_cycles
        return cls(schedule, smids, place, free, members)

    def jobs(self) -> list[range]:
        """Return the bursts of each row: an isolated burst is a row of its own, since it starts on a drained stage."""
        n = len(self.schedule.bursts)
        return [range(i, i + 1) for i in range(n)] if self.schedule.start == "isolated" else [range(n)]


def _rows(preset: Preset, jobs: list[tuple[_Prepared, list[int]]], conditions: Conditions) -> Rows:
    s, n = len(jobs), max(len(bursts) for _, bursts in jobs)
    load, port, gap, deadline = (np.zeros((n, s)) for _ in range(4))
    mhz = preset.sm_clock_mhz * conditions.clock
    for j, (p, bursts) in enumerate(jobs):
        chosen = [p.schedule.bursts[i] for i in bursts]
        load[: len(chosen), j] = [b.bytes for b in chosen]
        port[: len(chosen), j] = p.free[bursts]
        gap[: len(chosen), j] = [max(preset.turnaround, b.gap_cycles + preset.gap_overhead) for b in chosen]
        deadline[: len(chosen), j] = [b.start_ns * mhz / 1e3 for b in chosen]
    local = np.array([p.schedule.is_local for p, _ in jobs])
    host = np.array([p.schedule.destination == HOST for p, _ in jobs])
    warps = np.array([p.schedule.warps for p, _ in jobs], dtype=float)
    remote = np.array([preset.capacity_alone_bytes, preset.capacity_both_bytes])[:, None]
    capacity = np.where(local, preset.local_capacity_bytes, remote) * conditions.capacity
    members = np.stack([p.members for p, _ in jobs], axis=-1)
    return Rows(
        members=members,
        capacity=np.broadcast_to(capacity, members.shape).copy(),
        load=load,
        port=port,
        gap=gap,
        deadline=deadline,
        unawaited=np.minimum(load, preset.unawaited_bytes * warps),
        bursts=np.array([len(bursts) for _, bursts in jobs]),
        rule=np.array([_RULES[p.schedule.start] for p, _ in jobs]),
        link=np.where(local, _UNSHARED, preset.link_gb_per_s * conditions.link / (mhz / 1e3)),
        group=np.where(local, preset.local_group_bytes_per_cycle, _UNSHARED),
        buffer=np.where(host, preset.host_buffer_bytes, preset.link_buffer_bytes),
        sm_rate=np.where(local, preset.local_sm_bytes_per_cycle, preset.sm_bytes_per_cycle),
        latency=preset.latency + preset.latency_per_warp * warps,
        credit=np.where(local, preset.local_credit, preset.credit),
        turnaround=np.full(s, preset.turnaround),
    )


_Course = tuple[Array, Array, Array]


def _course(p: _Prepared, bursts: list[int], solution: Solution, column: int) -> _Course:
    """Return start and end, shape (bursts, K), and when the last byte left, shape (K,), of one row."""
    at = (*p.place, column)
    rows = slice(None, len(bursts))
    return solution.start[(rows, *at)], solution.end[(rows, *at)], solution.drained[at]


def _collect(preset: Preset, p: _Prepared, courses: list[_Course], clock: float) -> Ideal:
    start = np.concatenate([c[0] for c in courses])
    end = np.concatenate([c[1] for c in courses])
    left = np.full(start.shape, np.nan)
    if p.schedule.start == "isolated":
        left = np.array([c[2] for c in courses]) - end
    else:
        left[-1] = courses[0][2] - end[-1]
    return Ideal(p.smids, start, end, np.maximum(left, 0.0), p.free, _drift(preset, p, start, end, clock))


def _drift(preset: Preset, p: _Prepared, start: Array, end: Array, clock: float) -> Array:
    """Return how much longer bursts of several warps seem because the warps run apart, shape (N, K); cycles.

    Timed bursts only: each warp waits for the deadline, or goes at once when it is past. While a producer stays late its warps never
    meet again, and first start to last end grows by their spread: by `warp_drift` times the square root of the burst's
    length (a random walk), more for more walkers, up to `warp_drift_most` of the burst. An aligned start ends it.
    """
    if p.schedule.start != "timed" or p.schedule.warps == 1 or preset.warp_drift == 0.0:
        return np.broadcast_to(0.0, start.shape)
    deadline = np.array([b.start_ns for b in p.schedule.bursts]) * preset.sm_clock_mhz * clock / 1e3
    late = start > deadline[:, None] + 1.0
    run = np.zeros(start.shape)
    for i in range(1, len(start)):
        run[i] = np.where(late[i], run[i - 1] + 1.0, 0.0)
    walkers = np.sqrt(np.log(p.schedule.warps) / np.log(4))  # the largest of W normal deviates grows like this; 1 for the recorded W = 4
    issue = np.maximum(end - start, 1.0)
    most = preset.warp_drift_most * issue
    return np.asarray(-most * np.expm1(-run * preset.warp_drift * walkers * np.sqrt(issue) / most))


def course_of_first_burst(preset: Preset, schedule: Schedule, conditions: Conditions) -> tuple[float, Array, Array, Array]:
    """Return how the first burst drains, for a time line.

    Returns
    -------
    credit : float
        Cycles until a drain is known to the SM.
    capacity : ndarray, shape (K,)
        Bytes outstanding at most.
    times : ndarray, shape (events,)
        Cycles after the burst's start.
    drained : ndarray, shape (events, K)
        Bytes of each producer drained by then; linear in between.
    """
    p = _Prepared.of(preset, schedule)
    rows = _rows(preset, [(p, [0]), (p, [0])], conditions)
    rows.deadline[:] = 0.0
    solution = solve(rows, record=True)
    assert solution.path is not None
    times, drained = solution.path
    place = tuple(p.place)
    return float(rows.credit[0]), rows.capacity[(*place, 0)], times, drained[(slice(None), *place)]
