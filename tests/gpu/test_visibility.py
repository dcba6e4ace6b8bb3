"""Three kernels at once on real GPUs: they meet, answer, and see what physics allows."""

from __future__ import annotations

import numpy as np
import pytest

from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.measure.arrival import arrival_row, watched_bytes
from xstage_bench.measure.visibility_numbers import curve_of
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.watches import RESERVED_SMS, Watch

pytestmark = pytest.mark.gpu


def burst(device: CudaDevice, size: int, destination: int = 1, warps: int = 1, k: int | None = None) -> Schedule:
    most = device.node().gpus[0].sm_count - RESERVED_SMS
    return Schedule((Burst(size),), k or most, warps, 0, destination)


@pytest.mark.parametrize("destination", [0, 1])
@pytest.mark.parametrize("mode", ["curve", "ping", "message"])
def test_every_mode_ends_and_verifies(device: CudaDevice, mode: str, destination: int) -> None:
    watch = Watch(burst(device, 16 << 10, destination), mode, "release.sys", repetitions=3, pings=4)  # type: ignore[arg-type]
    seen = device.watch(watch)
    assert (seen.status, seen.wrong, seen.torn) == ("ok", 0, 0)
    assert seen.prober_smid in device.node().gpus[0].smids[-RESERVED_SMS:]
    assert np.isfinite(seen.round_trip_cycles[:, :16]).all()


def test_what_is_issued_is_not_yet_visible(device: CudaDevice) -> None:
    remote = curve_of(device.watch(Watch(burst(device, 256 << 10), "curve", pings=0, idle_pings=34)))
    assert remote.visible_bytes[-1] == remote.issued_bytes[-1] == 256 * 1024 * (device.node().gpus[0].sm_count - RESERVED_SMS)
    assert remote.plateau_bytes.median is not None
    assert remote.plateau_bytes.median > 500_000
    rate, line = remote.drain_gb_per_s.median, device.node().line_rate_gb_per_s
    assert rate is not None
    assert line is None or rate < line


@pytest.mark.parametrize(
    ("flavour", "plan"),
    [
        ("st.b32", "contiguous"),
        ("st.v4", "rows256"),
        ("red.v4.f32", "contiguous"),
        ("bulk.2048", "contiguous"),
        ("bulkred.f32.2048", "contiguous"),
        ("bulk.256", "tile128"),
        ("tensor.16384", "tile128"),
        ("tensor.2048", "contiguous"),
    ],
)
def test_a_burst_of_any_flavour_arrives_whole_and_after_its_issue(device: CudaDevice, flavour: str, plan: str) -> None:
    most = device.node().gpus[0].sm_count - RESERVED_SMS
    schedule = Schedule((Burst(watched_bytes(flavour, plan)),), most, 4, 0, 1, flavour=flavour, layout=plan)
    stride = int(schedule.stores_per_warp()[0])
    seen = device.watch(Watch(schedule, "curve", repetitions=6, stride=stride, pings=0, idle_pings=34))
    assert (seen.status, seen.wrong) == ("ok", 0)
    row = arrival_row(seen)
    volume = schedule.bursts[0].bytes * most
    assert row["slowest_visible_cycles"]["median"] > 500
    assert row["span_cycles"]["median"] > volume / 478e9 * seen.sm_clock_mhz * 1e6, "no faster than the wire"
    if flavour.startswith(("bulk", "tensor")):
        assert row["visible_cycles"]["median"] > row["completed_cycles"]["median"] >= row["reusable_cycles"]["median"] > 0


def test_the_count_of_torn_lines_sees_a_flag_that_promises_too_much(device: CudaDevice) -> None:
    quiet = burst(device, 0, k=1)
    torn = {
        f: device.watch(Watch(quiet, "message", format=f, payload_bytes=30720, idle_pings=1000, pings=0)).torn for f in ("ll128", "ll512")
    }
    assert torn["ll128"] == 0
    assert torn["ll512"] > 0
