"""The simulator's parts: the tree of arbiters, the issue port, and the event loop against closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from xstage_bench.device.sim.arbiter import level_of, rates
from xstage_bench.device.sim.core import Conditions, run
from xstage_bench.device.sim.port import Port, issue_cycles, issue_times
from xstage_bench.device.sim.presets import PRESETS
from xstage_bench.schedule.bursts import Burst, Schedule


@settings(max_examples=100, deadline=None)
@given(demand=npst.arrays(float, (5, 3), elements=st.floats(0, 100)), total=st.floats(0.1, 400))
def test_the_level_hands_out_all_that_is_wanted_or_all_there_is(demand: np.ndarray, total: float) -> None:
    level = level_of(np.full(3, total), demand)
    given_out = np.minimum(demand, level)
    assert given_out.sum(axis=0) == pytest.approx(np.minimum(total, demand.sum(axis=0)), rel=1e-9, abs=1e-9)


def shares(members: list[list[list[int]]], link: float, group: float = 1e9) -> np.ndarray:
    array = np.array(members, dtype=float)[..., None]
    return rates(array > 0, array, np.array([link]), np.array([25.6]), np.array([group]))[..., 0]


@pytest.mark.parametrize(
    ("members", "link", "first", "second"),
    [
        ([[[2, 0]], [[8, 0]]], 40.0, 10.0, 2.5),  # groups of 2 and 8 SMs, each alone in its pair: 20 for each group
        ([[[2, 4]]], 40.0, 10.0, 5.0),  # 2 SMs alone and 2 pairs of 2 are four pairs: who shares one gets half
        ([[[1, 0]], [[8, 0]]], 100.0, 25.6, (100 - 25.6) / 8),  # what one group cannot use goes to the others
        ([[[1, 0], [3, 0]]], 24.0, 12.0, 4.0),  # subgroups share evenly, whatever their size
    ],
)
def test_shares_worked_out_by_hand(members: list[list[list[int]]], link: float, first: float, second: float) -> None:
    rate = shares(members, link).ravel()
    assert rate[np.ravel(members) > 0].tolist() == pytest.approx([first, second])


@settings(max_examples=60, deadline=None)
@given(
    members=npst.arrays(np.int64, (4, 2, 2), elements=st.integers(0, 6)),
    link=st.floats(5, 2000),
    group=st.sampled_from([60.0, 1e9]),
)
def test_no_limit_of_the_tree_is_exceeded_and_nothing_is_wasted(members: np.ndarray, link: float, group: float) -> None:
    members[:, :, 1] *= 2  # whole pairs
    array = members[..., None].astype(float)
    rate = rates(array > 0, array, np.array([link]), np.array([25.6]), np.array([group]))
    total = (rate * array).sum(axis=(1, 2))[:, 0]
    assert rate.max(initial=0) <= 25.6 + 1e-9
    assert total.max() <= group + 1e-9
    wanted = np.minimum(25.6 * array.sum(axis=(1, 2))[:, 0], group)
    assert total.sum() == pytest.approx(min(link, wanted.sum()), rel=1e-9, abs=1e-9)


def test_one_warp_follows_the_recorded_staircase() -> None:
    stores = np.array([1, 2, 3, 4, 6, 8, 10, 12, 16, 32, 128, 512])
    recorded = np.array([92, 136, 146, 144, 215, 224, 295, 304, 384, 704, 2624, 10304])
    assert np.abs(issue_cycles(Port(), 1, stores) - recorded).max() <= 1.0
    for warps, n, cycles in ((4, 4, 176), (4, 8, 398), (8, 1, 146), (8, 4, 411), (16, 1, 210), (16, 2, 413)):
        assert issue_cycles(Port(), warps, np.array([n]))[0] == pytest.approx(cycles, rel=0.10)
    assert issue_cycles(Port(), 1, np.array([0]))[0] == 21.0, "two clock reads"
    assert 21.0 < issue_cycles(Port(), 16, np.array([0]))[0] < 60.0


@settings(max_examples=25, deadline=None)
@given(warps=st.integers(1, 16), stores=st.integers(1, 40))
def test_the_port_serves_one_warp_store_at_a_time(warps: int, stores: int) -> None:
    port = Port()
    times = issue_times(port, warps, stores)
    assert np.diff(times, axis=1).min(initial=port.store_cycles) >= port.store_cycles - 1e-9
    for i in range(stores):
        assert np.diff(times[:, i]).min(initial=port.port_cycles) >= port.port_cycles - 1e-9


@settings(max_examples=15, deadline=None)
@given(warps=st.integers(1, 16))
def test_a_long_burst_continues_the_curve_that_was_stepped_through(warps: int) -> None:
    # 300 stores are extrapolated from 264 when asked together with 100000; 200 are not.
    together = issue_cycles(Port(), warps, np.array([200, 300, 304, 100_000]))
    assert together[0] == pytest.approx(issue_cycles(Port(), warps, np.array([200]))[0])
    slope = (together[2] - together[1]) / 4
    assert slope == pytest.approx(max(20.0, Port().buffer_cycles * warps), rel=0.01)
    assert together[3] == pytest.approx(together[2] + (100_000 - 304) * slope, rel=1e-3)


PRESET = PRESETS["h200-nv18-x2"]
BARE = replace(PRESET, latency=0.0, latency_per_warp=0.0, credit=0.0, link_buffer_bytes=1.0, warp_drift=0.0)
ALL_EQUAL = replace(BARE, groups=((tuple(range(66)),),), capacity_both_bytes=BARE.capacity_alone_bytes)


def timed(period_ns: int, size: int, k: int, n: int = 32) -> Schedule:
    return Schedule(tuple(Burst(size, start_ns=period_ns * i) for i in range(n)), k, 1, start="timed")


def mixture() -> list[Schedule]:
    free = Schedule(tuple(Burst(32 * 512 * 4, gap_cycles=g) for g in (0, 900, 0, 40_000)), 64, 4, start="free")
    single = Schedule((Burst(512 * 40), Burst(0), Burst(512 * 400)), 132, 1)
    return [free, single, timed(4000, 32 * 512, 132), timed(500, 8 * 512, 16, 5), Schedule((Burst(16 * 512 * 3),), (0, 1, 50), 16)]


def test_a_single_producer_stalls_by_its_own_rate_only() -> None:
    stores = 256
    course = run(BARE, [Schedule((Burst(stores * 4 * 512),), 1, 4)], Conditions())[0]
    law = (stores * 4 * 512 - BARE.capacity_alone_bytes) / BARE.sm_bytes_per_cycle
    assert course.end[0, 0] == pytest.approx(law, rel=1e-3)
    assert course.backlogged[0, 0] == pytest.approx(BARE.capacity_alone_bytes / BARE.sm_bytes_per_cycle, rel=1e-3)


def test_alike_producers_follow_the_law_of_isolated_bursts() -> None:
    size = 256 * 512
    course = run(ALL_EQUAL, [Schedule((Burst(size),), 132, 1)], Conditions())[0]
    rate = ALL_EQUAL.link_gb_per_s / 1.98
    assert course.end.max() == pytest.approx(132 * (size - ALL_EQUAL.capacity_both_bytes) / rate, rel=1e-3)
    assert np.ptp(course.end) < 1e-6
    assert (course.end + course.backlogged).max() == pytest.approx(132 * size / rate, rel=2e-3), "the link passes all bytes"


def test_alike_producers_follow_the_periodic_law() -> None:
    size, gap = 64 * 512, 4000
    alike = replace(ALL_EQUAL, gap_overhead=0.0, turnaround=0.0)
    course = run(alike, [Schedule(tuple(Burst(size, gap_cycles=gap) for _ in range(20)), 132, 1, start="free")], Conditions())[0]
    issue = (course.end - course.start).mean(axis=1)[10:]
    assert issue == pytest.approx(132 * size / (alike.link_gb_per_s / 1.98) - gap, rel=1e-3)


def test_a_full_tree_serves_groups_unequally_and_pairs_alike() -> None:
    course = run(PRESET, [Schedule((Burst(256 * 4 * 512),), 132, 4)], Conditions())[0]
    end = course.end[0]
    assert np.array_equal(end[0::2], end[1::2])  # neighbours in a pair
    assert end.min() < 0.8 * np.median(end)


def test_a_shared_buffer_delays_the_knee_of_few_producers() -> None:
    burst = Schedule((Burst(28 * 4 * 512),), 12, 4)
    with_buffer = run(PRESET, [burst], Conditions())[0].end.mean()
    without = run(replace(PRESET, link_buffer_bytes=1.0), [burst], Conditions())[0].end.mean()
    assert with_buffer < 0.9 * without


def test_stagger_is_carried_over_and_an_early_deadline_does_not_wait() -> None:
    course = run(PRESET, [timed(3000, 64 * 512, 132)], Conditions())[0]
    deadline = 3000 * np.arange(32) * 1.98
    assert (course.start >= deadline[:, None] - 1e-6).all()
    late = course.start[1:] > deadline[1:, None] + 1
    assert np.allclose((course.start[1:] - course.end[:-1])[late], PRESET.turnaround)
    assert np.ptp(course.start[5]) > 3000  # producers no longer start together


def test_the_transition_is_sharp_in_the_period() -> None:
    # Recorded at K=132, 32 stores: a period of 5863 ns costs nothing for 32 bursts, 5173 ns costs thousands of cycles.
    calm, stalled = run(PRESET, [timed(6036, 32 * 512, 132), timed(5173, 32 * 512, 132)], Conditions())
    assert calm.issue().max() == pytest.approx(704, abs=2)
    assert stalled.issue()[10].mean() > 4000


def test_a_course_does_not_depend_on_what_is_solved_beside_it() -> None:
    schedules = mixture()
    together = run(PRESET, schedules, Conditions())
    reverse = run(PRESET, schedules[::-1], Conditions())[::-1]
    for s, a, b in zip(schedules, together, reverse, strict=True):
        alone = run(PRESET, [s], Conditions())[0]
        for other in (b, alone):
            assert np.array_equal(a.start, other.start)
            assert np.array_equal(a.end, other.end)
            assert np.array_equal(a.backlogged, other.backlogged, equal_nan=True)
    small = Burst(512 * 8)
    both, single = (run(PRESET, [Schedule(bursts, 132, 1)], Conditions())[0] for bursts in ((Burst(512 * 400), small), (small,)))
    assert np.array_equal(both.end[1], single.end[0]), "isolated bursts of one schedule are as if alone"
