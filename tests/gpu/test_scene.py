"""Scenes on real GPUs: verified, aligned, and on the physics they claim."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.schedule.bursts import HOST, Burst, Schedule
from xstage_bench.schedule.device import Execution
from xstage_bench.schedule.patterns import PATTERNS, both_directions, pair
from xstage_bench.schedule.scenes import Companion, Scene

pytestmark = pytest.mark.gpu
LONG = (Burst(1 << 20),)


def median_rates(device: CudaDevice, scene: Scene, n: int = 6) -> np.ndarray:
    found = device.measure_scene(scene, n)
    assert {t.status for t in found[1:]} == {"ok"}, [t.detail for f in found for t in f.traces]
    return np.median([t.gb_per_s() for t in found[1:]], axis=0)


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_is_verified_and_overlaps(device: CudaDevice, name: str) -> None:
    scene = PATTERNS[name](device.node(), LONG)
    found = device.measure_scene(scene, 5)
    assert {t.status for t in found[1:]} == {"ok"}
    assert min(t.overlap() for t in found[1:]) > 0.8


def test_gpus_start_together_to_within_the_bound(device: CudaDevice) -> None:
    """The offsets of two timers drift by parts per million: what they scatter beside that is the error of the alignment."""
    found = device.measure_scene(both_directions(device.node(), (Burst(8192),)), 30)
    offset = np.array([t.offset_ns[1] for t in found])
    trend = np.polyval(np.polyfit(np.arange(30), offset - offset[0], 1), np.arange(30))
    assert np.std(offset - offset[0] - trend) < max(t.start_skew_bound_ns for t in found)
    assert all(0 < t.start_skew_bound_ns < 3000 for t in found)


def test_a_scene_of_one_schedule_is_the_same_instrument(device: CudaDevice) -> None:
    schedule = pair(device.node(), (Burst(64 * 1024),)).schedules[0]
    alone = np.median([t.issue_cycles.mean() for t in device.measure([Execution(schedule, i) for i in range(15)])])
    scene = np.median([t.traces[0].issue_cycles.mean() for t in device.measure_scene(Scene((schedule,)), 15)[1:]])
    assert scene == pytest.approx(alone, rel=0.05)


def test_pulls_from_the_same_egress_take_half(device: CudaDevice) -> None:
    node = device.node()
    push = Schedule((Burst(2 << 20),), tuple(node.gpus[0].smids[::2]), 4, 0, 1)
    c = Companion("pull", 1, 0, tuple(node.gpus[1].smids[::2]), 8)
    alone = median_rates(device, Scene((push,)))[0]
    assert median_rates(device, Scene((push,), (c,), company_ns=1_000_000))[0] < 0.7 * alone


def test_tensor_work_fills_the_gap(device: CudaDevice) -> None:
    scene = pair(device.node(), tuple(Burst(8192, 20_000) for _ in range(8)))
    idle, busy = (device.measure_scene(replace(scene, gap_work=w), 3)[-1] for w in ("idle", "mma"))
    assert idle.gap_work_ops[0] == 0
    assert busy.gap_work_ops[0] > 7 * 20_000 / 64, "more than one instruction per 64 cycles"
    assert busy.traces[0].gap_cycles[1:].mean() == pytest.approx(idle.traces[0].gap_cycles[1:].mean(), rel=0.05)


def test_host_memory_is_verified_and_slower_than_a_peer(device: CudaDevice) -> None:
    device.verify(0, HOST)
    to_host, to_peer = (Scene((Schedule((Burst(1 << 18),), 132, 4, 0, d),)) for d in (HOST, 1))
    assert median_rates(device, to_host)[0] < 0.5 * median_rates(device, to_peer)[0]
