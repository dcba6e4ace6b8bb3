"""The preset of exactly the fitted form: closed forms hold, with the truth that it names."""

from __future__ import annotations

import numpy as np
import pytest

from xstage_bench.device.sim import SimDevice
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution

DEVICE = SimDevice("burst-gap", seed=3)
assert DEVICE.truth is not None
TRUTH = DEVICE.truth


def mean_of(schedule: Schedule, n: int = 60) -> np.ndarray:
    traces = list(DEVICE.measure([Execution(schedule, r) for r in range(n)]))
    summary = traces[0].summary()  # the makespan is as unbiased as the mean
    assert summary["makespan_ns"][0] * 1.98 == pytest.approx(summary["issue_mean_cycles"][0], rel=1e-9)
    return np.mean([t.issue_cycles.mean(axis=1) for t in traces], axis=0)


def test_isolated_bursts_follow_the_law() -> None:
    for stores in (8, 30, 200):
        t0 = TRUTH.t0_base_cycles + TRUTH.t0_cycles_per_store * stores
        law = max(t0, (132 * (512 * stores - TRUTH.capacity_bytes)) / (TRUTH.drain_gb_per_s / 1.98))
        assert mean_of(Schedule((Burst(512 * stores),), 132, 1))[0] == pytest.approx(law, rel=0.005)


def test_periodic_bursts_follow_the_law_on_both_branches() -> None:
    size, volume = 512 * 64, 132 * 512 * 64
    for gap in (0, 9000, 50_000):
        s = Schedule(tuple(Burst(size, gap_cycles=gap) for _ in range(6)), 132, 1, start="free")
        law = max(TRUTH.t0_cycles(1, np.float64(64)), volume / (TRUTH.drain_gb_per_s / 1.98) - gap)
        assert mean_of(s)[1:] == pytest.approx(law, rel=0.006)


def test_noise_is_multiplicative_seeded_and_of_the_stated_size() -> None:
    s = Schedule((Burst(512 * 200),), 132, 1)
    device = SimDevice("burst-gap", seed=1)
    values = np.array([t.issue_cycles.mean() for t in device.measure([Execution(s, r) for r in range(400)])])
    assert np.log(values).std() == pytest.approx(TRUTH.noise, rel=0.12)
    assert (device.backend, SimDevice().truth) == ("sim:burst-gap", None)
    again = next(SimDevice("burst-gap", seed=1).measure([Execution(s, 7)]))
    assert again.issue_cycles.mean() == values[7]


def test_timed_bursts_stall_when_the_period_is_too_short() -> None:
    size = 512 * 64
    boundary = 132 * size / 372.0  # ns
    short, long = (
        mean_of(Schedule(tuple(Burst(size, start_ns=int(f * boundary) * i) for i in range(6)), 132, 1, start="timed"), 5)
        for f in (0.8, 1.5)
    )
    assert short[3:].min() > 5 * long[3:].max()
