"""The preset of exactly the fitted form: closed forms hold, with the truth that it names."""

from __future__ import annotations

import numpy as np
import pytest

from xstage_bench.device.sim import SimDevice
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution


def mean_of(schedule: Schedule, n: int = 60) -> np.ndarray:
    traces = SimDevice("burst-gap", seed=3).measure([Execution(schedule, r) for r in range(n)])
    return np.mean([t.issue_cycles.mean(axis=1) for t in traces], axis=0)


def test_isolated_bursts_follow_the_law() -> None:
    truth = SimDevice("burst-gap").truth
    assert truth is not None
    for stores in (8, 30, 200):
        t0 = truth.t0_base_cycles + truth.t0_cycles_per_store * stores
        law = max(t0, (132 * (512 * stores - truth.capacity_bytes)) / (truth.drain_gb_per_s / 1.98))
        assert mean_of(Schedule((Burst(512 * stores),), 132, 1))[0] == pytest.approx(law, rel=0.005)


def test_periodic_bursts_follow_the_law_on_both_branches() -> None:
    truth = SimDevice("burst-gap").truth
    assert truth is not None
    size, volume = 512 * 64, 132 * 512 * 64
    for gap in (0, 9000, 50_000):
        s = Schedule(tuple(Burst(size, gap_cycles=gap) for _ in range(6)), 132, 1, start="free")
        law = max(truth.t0_cycles(1, np.float64(64)), volume / (truth.drain_gb_per_s / 1.98) - gap)
        assert mean_of(s)[1:] == pytest.approx(law, rel=0.006)


def test_the_makespan_is_as_unbiased_as_the_mean() -> None:
    traces = list(SimDevice("burst-gap").measure([Execution(Schedule((Burst(512 * 400),), 132, 1), r) for r in range(5)]))
    for t in traces:
        summary = t.summary()
        assert summary["makespan_ns"][0] * 1.98 == pytest.approx(summary["issue_mean_cycles"][0], rel=1e-9)


def test_noise_is_multiplicative_seeded_and_of_the_stated_size() -> None:
    s = Schedule((Burst(512 * 200),), 132, 1)
    device = SimDevice("burst-gap", seed=1)
    values = np.array([t.issue_cycles.mean() for t in device.measure([Execution(s, r) for r in range(400)])])
    assert device.truth is not None
    assert np.log(values).std() == pytest.approx(device.truth.noise, rel=0.12)
    again = next(SimDevice("burst-gap", seed=1).measure([Execution(s, 7)]))
    assert again.issue_cycles.mean() == values[7]


def test_it_is_labelled_and_the_rich_presets_have_no_truth() -> None:
    assert SimDevice("burst-gap").backend == "sim:burst-gap"
    assert SimDevice().truth is None


def test_timed_bursts_stall_when_the_period_is_too_short() -> None:
    size = 512 * 64
    boundary = 132 * size / 372.0  # ns
    short, long = (
        mean_of(Schedule(tuple(Burst(size, start_ns=int(f * boundary) * i) for i in range(6)), 132, 1, start="timed"), 5)
        for f in (0.8, 1.5)
    )
    assert short[3:].min() > 5 * long[3:].max()


def test_the_knee_is_where_the_branches_meet() -> None:
    truth = SimDevice("burst-gap").truth
    assert truth is not None
    knee = truth.knee_bytes(132, 1)
    t0 = truth.t0_base_cycles + truth.t0_cycles_per_store * knee / 512
    assert t0 == pytest.approx(132 * (knee - truth.capacity_bytes) / truth.bytes_per_cycle(local=False))
    assert truth.knee_bytes(1, 1) == float("inf")
