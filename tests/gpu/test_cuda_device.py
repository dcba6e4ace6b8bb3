"""The instrument on real GPUs: correct, alone on its SM, and on the physics it claims."""

from __future__ import annotations

import numpy as np
import pytest

from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.errors import DeviceLostError, UsageError
from xstage_bench.measure.copies import METHODS, copy_rates, store_rates
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution

pytestmark = pytest.mark.gpu


def median_issue(device: CudaDevice, schedule: Schedule, n: int = 15) -> float:
    traces = list(device.measure([Execution(schedule, i) for i in range(n)]))
    assert {t.status for t in traces} == {"ok"}
    return float(np.median([t.issue_cycles.mean() for t in traces[1:]]))


def test_every_pair_verifies(device: CudaDevice) -> None:
    for pair in device.node().pairs:
        device.verify(*pair)
    device.verify(0, 0)


def test_a_long_burst_stalls_and_the_local_control_does_not(device: CudaDevice) -> None:
    sms = device.node().gpus[0].sm_count
    size = 32 * 4 * 512
    remote, local = (median_issue(device, Schedule((Burst(size),), sms, 4, 0, d)) for d in (1, 0))
    short = median_issue(device, Schedule((Burst(size // 8),), sms, 4, 0, 1))
    assert remote > 5 * local
    assert short < remote / 40


@pytest.mark.parametrize("start", ["isolated", "free", "timed"])
@pytest.mark.parametrize("warps", [1, 3, 16])
def test_every_start_rule_and_odd_warp_counts_are_verified(device: CudaDevice, start: str, warps: int) -> None:
    bursts = tuple(
        Burst(n * warps * 512, 300 if start == "free" else 0, 4000 * i if start == "timed" else 0) for i, n in enumerate((1, 0, 7, 130, 2))
    )
    schedule = Schedule(bursts, (0, 5, 17), warps, 0, 1, start)  # type: ignore[arg-type]
    (trace,) = device.measure([Execution(schedule)])
    assert trace.status == "ok", trace.detail
    assert trace.smids.tolist() == [0, 5, 17]
    if start == "timed":
        # The burst of 130 stores outlasts its period, so the last one starts when it can: at once.
        np.testing.assert_allclose(trace.start_ns.mean(axis=1)[1:4], [4000, 8000, 12000], atol=1500)
    if start == "free":
        assert (trace.gap_cycles[1:] >= 300).all()


def test_the_clock_and_the_tick_are_plausible(device: CudaDevice) -> None:
    node = device.node()
    assert 1 <= node.timer_tick_ns <= 1024
    (trace,) = device.measure([Execution(Schedule((Burst(0),), 1))])
    assert 0 < trace.issue_cycles[0, 0] < 500
    assert 300 < trace.sm_clock_mhz < 1.1 * node.gpus[0].sm_clock_mhz


def test_refused_before_launch(device: CudaDevice) -> None:
    with pytest.raises(UsageError, match="producers asked for"):
        list(device.measure([Execution(Schedule((Burst(512),), 5000))]))


def test_a_killed_worker_fails_the_pair_and_the_next_call_works(device: CudaDevice) -> None:
    device.node()
    assert device._worker is not None
    device._worker.kill()
    with pytest.raises(DeviceLostError, match="pair 0>1"):
        list(device.measure([Execution(Schedule((Burst(512),), 1))]))
    traces = list(device.measure([Execution(Schedule((Burst(512),), 1))] * 300))
    assert {t.status for t in traces} <= {"ok", "throttled"}, "clocks may still ramp in the new process; nothing else may be wrong"


@pytest.mark.parametrize("what", [*METHODS, "st.v4", "bulk.4096"])
def test_a_pair_copies_right_and_below_the_line_rate(device: CudaDevice, what: str) -> None:
    rates = copy_rates(device, 0, 1, what) if what in METHODS else store_rates(device, 0, 1, what)
    line = device.node().line_rate_gb_per_s
    assert len(rates) >= 3
    assert 10 < min(rates) <= max(rates) < (line or np.inf)
