"""The event loop against closed forms, and its independence of what is solved beside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from xstage_bench.device.sim.core import Conditions, run
from xstage_bench.device.sim.presets import PRESETS
from xstage_bench.schedule.bursts import Burst, Schedule

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


def test_alike_producers_follow_the_periodic_law() -> None:
    size, gap = 64 * 512, 4000
    alike = replace(ALL_EQUAL, gap_overhead=0.0, turnaround=0.0)
    course = run(alike, [Schedule(tuple(Burst(size, gap_cycles=gap) for _ in range(20)), 132, 1, start="free")], Conditions())[0]
    issue = (course.end - course.start).mean(axis=1)[10:]
    assert issue == pytest.approx(132 * size / (alike.link_gb_per_s / 1.98) - gap, rel=1e-3)


def test_the_link_passes_all_bytes_and_no_faster_than_its_rate() -> None:
    size = 512 * 512
    course = run(BARE, [Schedule((Burst(size),), 132, 1)], Conditions())[0]
    last = (course.end + course.backlogged).max()
    assert last == pytest.approx(132 * size / (BARE.link_gb_per_s / 1.98), rel=2e-3)


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


def test_isolated_bursts_of_one_schedule_are_as_if_alone() -> None:
    both = run(PRESET, [Schedule((Burst(512 * 400), Burst(512 * 8)), 132, 1)], Conditions())[0]
    second = run(PRESET, [Schedule((Burst(512 * 8),), 132, 1)], Conditions())[0]
    assert np.array_equal(both.end[1], second.end[0])
