"""The simulated device as others see it: node, Traces, determinism, faults; and the preset of exactly the fitted form."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from xstage_bench.device.sim import PRESETS, Faults, SimDevice
from xstage_bench.errors import DeviceLostError, PairError, UsageError
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Device, Execution
from xstage_bench.schedule.trace import Trace

ISOLATED = Schedule((Burst(512 * 64),), 132, 1)


def one(schedule: Schedule, *, seed: int = 0, process: int = 0, repetition: int = 0, timeline: bool = False) -> Trace:
    return next(SimDevice(seed=seed, process=process).measure([Execution(schedule, repetition, timeline=timeline)]))


def same(a: Trace, b: Trace) -> bool:
    names = ("smids", "issue_cycles", "gap_cycles", "start_ns", "end_ns", "drain_cycles")
    return all(np.array_equal(getattr(a, n), getattr(b, n), equal_nan=True) for n in names) and a.sm_clock_mhz == b.sm_clock_mhz


@pytest.mark.parametrize(("preset", "gpus"), [("h200-nv18-x2", 2), ("h200-nvswitch-x8", 8)])
def test_it_is_a_device_and_says_that_it_is_simulated(preset: str, gpus: int) -> None:
    device: Device = SimDevice(preset)
    assert device.backend == f"sim:{preset}"
    node = device.node()
    assert len(node.pairs) == gpus * (gpus - 1)
    assert node.gpus[0].smids == tuple(range(132))
    assert "simulated" in node.gpus[0].name
    assert (node.timer_tick_ns, node.line_rate_gb_per_s, node.gpus[1].sm_clock_mhz) == (32.0, 478.1, 1980.0)
    assert ("extrapolated" in PRESETS[preset].provenance) == (gpus == 8)
    last = Schedule((Burst(512 * 64),), 132, 1, source=gpus - 1, destination=0)
    assert next(device.measure([Execution(last)])).issue_cycles.mean() > 5000
    device.close()
    device.close()


def test_clocks_are_whole_cycles_and_whole_ticks() -> None:
    s = Schedule(tuple(Burst(512 * 32, start_ns=4000 * i) for i in range(6)), 64, 2, start="timed")
    trace = one(s)
    assert trace.issue_cycles.shape == (6, 64)
    assert np.array_equal(trace.issue_cycles, np.rint(trace.issue_cycles))
    assert not (trace.start_ns % 32).any()
    assert not (trace.end_ns % 32).any()
    assert np.abs((trace.end_ns - trace.start_ns) - trace.issue_cycles / 1.98).max() <= 33
    assert np.isnan(trace.gap_cycles[0]).all()
    assert np.isnan(trace.drain_cycles[:-1]).all()
    assert (trace.drain_cycles[-1] > 0).all()


def test_a_trace_does_not_depend_on_order_or_company() -> None:
    free = Schedule(tuple(Burst(512 * 48, gap_cycles=2000) for _ in range(8)), 132, 1, start="free")
    few = Schedule((Burst(512 * 16 * 40),), (3, 4, 90), 16)
    asked = [Execution(s, r) for r in range(3) for s in (ISOLATED, free, few)]
    forward = list(SimDevice(seed=5, process=1).measure(asked))
    backward = list(SimDevice(seed=5, process=1).measure(asked[::-1]))[::-1]
    for a, b in zip(forward, backward, strict=True):
        assert same(a, b)
    assert same(forward[0], one(ISOLATED, seed=5, process=1))
    assert forward[2].smids.tolist() == [3, 4, 90]
    base = one(ISOLATED).issue_cycles.mean()
    for other in (one(ISOLATED, repetition=1), one(ISOLATED, seed=1), one(ISOLATED, process=1)):
        assert 0 < abs(other.issue_cycles.mean() / base - 1) < 0.05
    means = [t.issue_cycles.mean() for t in SimDevice().measure([Execution(ISOLATED, r) for r in range(40)])]
    assert 0.001 < np.std(means) / np.mean(means) < 0.02, "they repeat as the hardware does"
    assert set(np.unique(one(Schedule((Burst(512 * 8),), 8, 1)).issue_cycles)) == {224.0}, "one warp that never stalls is exact"


def test_fences_cost_a_round_trip_more_after_a_saturating_burst_and_less_when_empty() -> None:
    empty = one(Schedule((Burst(0),), 132, 1))
    assert empty.issue_cycles.max() < 60
    assert 640 <= empty.drain_cycles.min() <= empty.drain_cycles.max() <= 1150
    assert 1400 <= one(Schedule((Burst(512),), 1, 1)).drain_cycles[0, 0] <= 2400
    assert 12_000 <= one(Schedule((Burst(512 * 4 * 40),), 132, 4)).drain_cycles.mean() <= 22_000


def test_local_stores_do_not_see_the_link() -> None:
    size = 512 * 4 * 256
    local = one(Schedule((Burst(size),), 32, 4, destination=0)).issue_cycles.mean()
    remote = one(Schedule((Burst(size),), 32, 4)).issue_cycles.mean()
    assert local == pytest.approx(16268, rel=0.03)
    assert remote > 4 * local
    few, many = (one(Schedule((Burst(size),), k, 4, destination=0)).issue_cycles.mean() for k in (8, 132))
    assert many == pytest.approx(27594, rel=0.06)
    assert many > 1.5 * few


def test_the_timeline_has_every_store_and_shows_the_onset() -> None:
    trace = one(Schedule((Burst(512 * 2 * 48),), 132, 2), timeline=True)
    line = trace.timeline_cycles
    assert line is not None
    assert line.shape == (132, 2, 48)
    step = np.diff(line.mean(axis=(0, 1)))
    assert (step >= 0).all()
    assert step[:8].mean() < 60
    assert step[-8:].mean() > 400  # held back by credits
    assert one(ISOLATED).timeline_cycles is None
    assert one(Schedule((Burst(0),), 4, 2), timeline=True).timeline_cycles.shape == (4, 2, 0)


def test_what_the_node_lacks_and_bad_construction_are_refused() -> None:
    for lacking in (Schedule((Burst(512),), 133), Schedule((Burst(512),), (0, 132)), Schedule((Burst(512),), 1, destination=2)):
        with pytest.raises(UsageError):
            next(SimDevice().measure([Execution(lacking)]))
    with pytest.raises(UsageError, match="no preset 'h100'"):
        SimDevice("h100")
    with pytest.raises(UsageError):
        SimDevice(seed=-1)
    with pytest.raises(UsageError):
        SimDevice().verify(0, 7)


def test_a_dropped_store_is_found_and_named() -> None:
    device = SimDevice(faults=Faults(dropped=((1, 0),)))
    device.verify(0, 1)
    with pytest.raises(PairError, match=r"pair 1>0: destination byte 0x[0-9a-f]+ holds 0x\w+, expected 0x\w+"):
        device.verify(1, 0)
    back = Schedule((Burst(512 * 64),), 132, 1, source=1, destination=0)
    assert next(device.measure([Execution(back)])).status == "corrupt"
    assert next(device.measure([Execution(ISOLATED)])).status == "ok"


def test_a_hang_loses_the_pair_and_leaves_the_other() -> None:
    device = SimDevice(faults=Faults(hanging=((0, 1),)))
    with pytest.raises(DeviceLostError, match="0>1"):
        next(device.measure([Execution(ISOLATED)]))
    with pytest.raises(DeviceLostError):
        device.verify(0, 1)
    device.verify(1, 0)
    assert next(device.measure([Execution(Schedule((Burst(512),), 1, source=1, destination=0))])).status == "ok"


def test_throttling_shows_in_clock_and_status() -> None:
    device = SimDevice(faults=Faults(throttle_after=2))
    traces = list(device.measure([Execution(ISOLATED, r) for r in range(4)]))
    assert [t.status for t in traces] == ["ok", "ok", "throttled", "throttled"]
    ramping = list(SimDevice().measure([Execution(ISOLATED, r, "warmup") for r in range(5)]))
    assert {t.status for t in ramping} == {"warmup"}
    assert min(t.sm_clock_mhz for t in ramping) < 1960
    assert traces[3].sm_clock_mhz == pytest.approx(0.7 * 1980, rel=1e-3)
    assert traces[0].sm_clock_mhz == pytest.approx(1980, rel=1e-3)
    assert "MHz" in traces[3].detail
    # The link keeps its rate in bytes per second, so it passes more per cycle of the slower clock.
    assert traces[3].issue_cycles.mean() < 0.85 * traces[0].issue_cycles.mean()


def test_a_slow_link_is_slow_in_its_own_direction() -> None:
    device = SimDevice(faults=Faults(slow={(0, 1): 0.5}))
    size = 512 * 256
    there, back = (
        next(device.measure([Execution(Schedule((Burst(size),), 132, 1, source=a, destination=b))])).issue_cycles.max()
        for a, b in ((0, 1), (1, 0))
    )
    assert there / back == pytest.approx(2.0, rel=0.1)


def test_an_error_in_the_middle_keeps_what_came_before_and_a_pair_without_access_is_named() -> None:
    device = SimDevice(faults=Faults(error_after=3))
    traces = device.measure([Execution(ISOLATED, r) for r in range(6)])
    assert [next(traces).status for _ in range(3)] == ["ok", "ok", "ok"]
    with pytest.raises(PairError, match="GPU 0"):
        next(traces)
    device = SimDevice(faults=Faults(unusable={(0, 1): "no NVLink"}))
    assert (device.node().pairs, device.node().unusable) == (((1, 0),), {"0>1": "no NVLink"})
    with pytest.raises(PairError, match="no NVLink"):
        device.verify(0, 1)


def test_many_bursts_at_once_stay_within_memory() -> None:
    schedules = [Schedule(tuple(Burst(512 * (1 + (i + j) % 90)) for j in range(64)), 132, 1) for i in range(90)]
    tracemalloc.start()
    try:
        for _ in SimDevice().measure([Execution(s) for s in schedules]):
            pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 200e6


FITTED = SimDevice("burst-gap", seed=3)
assert FITTED.truth is not None
TRUTH = FITTED.truth


def mean_of(schedule: Schedule, n: int = 60) -> np.ndarray:
    traces = list(FITTED.measure([Execution(schedule, r) for r in range(n)]))
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
