"""Replays on real GPUs: verified, timed as asked, and on the physics they claim."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from xstage_bench.device.cuda.device import CudaDevice
from xstage_bench.schedule.device import Compute
from xstage_bench.schedule.tasks import FORMS, NONE, PUBLISHES, TaskSchedule, TaskTrace

pytestmark = pytest.mark.gpu


def schedule(device: CudaDevice, per: int = 12, cycles: int = 8000, stores: int = 16, **changed: Any) -> TaskSchedule:
    k = device.node().gpus[0].sm_count
    n = k * per
    size, none = np.full(n, stores * 2048), np.full(n, NONE)
    base = TaskSchedule(k, np.repeat(np.arange(k), per), np.full(n, cycles), size, size // 8 * 7 // 512 * 512, none, none)
    return replace(base, **changed)


def last(device: CudaDevice, s: TaskSchedule, compute: Compute) -> TaskTrace:
    found = list(device.execute_tasks([s], repetitions=4, compute=compute))
    assert {t.status for t in found} == {"ok"}, found[-1].detail
    return found[-1]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("compute", ["spin", "mma"])
def test_compute_takes_the_cycles_asked_for(device: CudaDevice, form: str, compute: Compute) -> None:
    s = schedule(device, form=form).without_stores()
    t = last(device, s, compute)
    took = (t.compute_end_ns - t.start_ns) * t.sm_clock_mhz / 1e3
    assert np.median(took) == pytest.approx(8000, rel=0.02)
    turns = 12 * (8000 + (600 if form == "single" else 200))
    assert t.total_ns * t.sm_clock_mhz / 1e3 < 1.05 * turns + 2000, "one task after the other, none at the same time"
    assert t.total_ns * t.sm_clock_mhz / 1e3 > 12 * 8000


@pytest.mark.parametrize(
    "changed",
    [
        {"publish": p, "both_ways": b, "form": f}
        for p, b, f in zip(PUBLISHES, (True, False, True), ("single", "ping_pong", "ping_pong"), strict=True)
    ]
    + [{"flavour": "st.v2", "form": "single"}, {"warps": 8}, {"warps": 1}, {"warps": 3}],
    ids=str,
)
def test_every_byte_arrives(device: CudaDevice, changed: dict[str, Any]) -> None:
    warps, unit = changed.get("warps", 4), 256 if changed.get("flavour") == "st.v2" else 512
    base = schedule(device, per=40)
    size = np.resize([0, 1, 5, 16, 40], base.task_count) * warps * unit
    index = np.arange(base.task_count) % 40
    waits = {"waits_for": np.where(index >= 4, index - 4, NONE), "signals": index}
    s = replace(base, **{**changed, "bytes": size, "remote_bytes": size * 7 // 8 // unit * unit, **waits})
    later = index >= 4
    for compute in ("spin", "mma"):
        t = last(device, s, compute)
        seen = np.full(40, -np.inf)
        np.maximum.at(seen, index, t.signal_end_ns)
        early = seen[index[later] - 4] - t.start_ns[later]
        # An SM is tied to the common time at both ends of the execution. Tensor-core work changes the clock between them, so times of
        # different SMs are comparable to about 1 % of the execution.
        allowed = 0.01 * t.total_ns if compute == "mma" else 0.0
        assert early.max() < allowed, (
            f"{compute}: {(early >= 0).sum()} of {early.size} tasks begin before their event, the worst by {early.max():.0f} ns"
        )


def test_a_role_stores_while_the_other_computes(device: CudaDevice) -> None:
    paired, alone = (last(device, schedule(device, form=f, stores=4), "mma") for f in ("ping_pong", "single"))
    following = paired.start_ns[1:] < paired.store_end_ns[:-1]
    same = np.diff(paired.schedule.producer) == 0
    assert following[same].mean() > 0.9
    assert not (alone.start_ns[1:] < alone.store_end_ns[:-1])[same].any()


def test_a_release_waits_for_the_backlog_and_a_relaxed_signal_does_not(device: CudaDevice) -> None:
    index = np.arange(schedule(device).task_count) % 12
    took = {}
    for publish in PUBLISHES:
        t = last(device, schedule(device, signals=index, publish=publish, form="single", cycles=1000), "spin")
        took[publish] = float(np.median((t.signal_end_ns - t.store_end_ns) * t.sm_clock_mhz / 1e3))
    assert took["relaxed"] < 600
    assert took["release.gpu"] > 3000
    assert took["release.sys"] > took["release.gpu"]


def test_local_stores_cost_little_and_two_directions_nearly_the_same(device: CudaDevice) -> None:
    full = schedule(device, cycles=0, stores=64)
    one, both, local = (last(device, s, "spin").total_ns for s in (full, replace(full, both_ways=True), full.local()))
    assert local < 0.3 * one
    assert both == pytest.approx(one, rel=0.1)
