"""The simulator builds a node of every entry of the registry, and what is put in can be read off its traces: T0, R and Q."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from xstage_bench.device.sim import PRESETS, SimDevice
from xstage_bench.device.sim.presets import Preset
from xstage_bench.device.sim.registered import dealt, find_preset
from xstage_bench.errors import DataError, UsageError
from xstage_bench.machine.gpus import entries
from xstage_bench.model.estimate import Estimate, with_spread
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution

WARPS = 4
BASE = PRESETS["h200-nv18-x2"]
NAMES = list(entries())


def read_off(name: str) -> tuple[Preset, dict[str, Estimate]]:
    """T0 of a small burst, R by the slope of the slowest producer, and Q by the stalled line of the mean, in three processes.

    Without the noise of single producers, which makes the slowest of many slower than the link.
    """
    known = find_preset(name)
    PRESETS["quiet"] = replace(known, noise=replace(known.noise, producer=0.0, spike_chance=0.0))
    try:
        return _read_off("quiet")
    finally:
        del PRESETS["quiet"]


def _read_off(preset: str) -> tuple[Preset, dict[str, Estimate]]:
    found: dict[str, list[float]] = {"t0_cycles": [], "drain_gb_per_s": [], "capacity_bytes": []}
    for process in range(3):
        device = SimDevice(preset, process=process)
        p = device.preset
        n = round(2.7 * p.capacity_both_bytes / (WARPS * 512))  # the same multiple of what an SM holds
        asked = [
            Execution(Schedule((Burst(size * WARPS * 512),), p.sm_count, WARPS), r) for size in (4, n, 2 * n, 512, 1024) for r in range(3)
        ]
        traces = list(device.measure(asked))
        assert tuple(traces[0].smids) == p.smids
        cycles = np.array([t.issue_cycles[0] for t in traces]).reshape(5, 3, -1)
        mean, slowest = cycles.mean(axis=(1, 2)), np.median(cycles.max(axis=2), axis=1)
        step = p.sm_count * WARPS * 512.0
        found["t0_cycles"].append(float(mean[0]))
        found["drain_gb_per_s"].append(float(step * 512 / (slowest[4] - slowest[3]) * p.sm_clock_mhz / 1e3))
        found["capacity_bytes"].append(float(step * n * (2 - mean[2] / (mean[2] - mean[1]))))
    return p, {name: with_spread(float(np.mean(values)), values, "issue_mean_cycles") for name, values in found.items()}


@pytest.fixture(scope="module")
def reference() -> dict[str, Estimate]:
    return read_off("h200-nv18-x2")[1]


def held(p: Preset) -> float:
    """What all SMs together may have outstanding, less what drains while the news of it is on its way."""
    return p.sm_count * p.capacity_both_bytes + p.link_buffer_bytes - p.credit * p.link_gb_per_s * 1e3 / p.sm_clock_mhz


def inside(estimate: Estimate, truth: float, slack: float) -> bool:
    """Within the interval of three processes and a share of the truth for what the reading itself is off by."""
    assert estimate.low is not None and estimate.high is not None  # noqa: PT018
    return estimate.low - slack * truth <= truth <= estimate.high + slack * truth


@pytest.mark.parametrize("name", NAMES)
def test_what_is_put_in_is_read_off(name: str, reference: dict[str, Estimate]):
    p, found = read_off(name)
    assert inside(found["drain_gb_per_s"], p.link_gb_per_s, 0.01), (found["drain_gb_per_s"], p.link_gb_per_s)
    assert inside(found["t0_cycles"], reference["t0_cycles"].value, 0.02), "an SM issues in as many cycles"
    # The line of the mean is not the law of equal producers: it reads Q too small by the same share everywhere.
    share = reference["capacity_bytes"].value / held(BASE)
    assert inside(found["capacity_bytes"], share * held(p), 0.15), (found["capacity_bytes"], share * held(p))
    assert "simulated" in p.gpu


def test_the_reference_by_its_name_is_the_recorded_node():
    assert replace(find_preset("h200-nv18"), name="", provenance="") == pytest.approx(replace(BASE, name="", provenance=""))


def test_smids_with_holes(monkeypatch: pytest.MonkeyPatch):
    """A virtual GPU, or one cut by MIG: its smids are not 0 to K - 1."""
    holes = replace(BASE, name="holes", sm_count=78, absent_smids=tuple(range(5, 59)), groups=dealt(132, BASE.groups))
    monkeypatch.setitem(PRESETS, "holes", holes)
    assert (len(holes.smids), holes.smids[4:6], holes.smids[-1]) == (78, (4, 59), 131)
    _, found = read_off("holes")
    assert inside(found["drain_gb_per_s"], holes.link_gb_per_s, 0.01)


def test_what_cannot_be_built_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path):
    with pytest.raises(UsageError, match="no preset 'h300'"):
        SimDevice("h300")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "xstage-bench" / "nodes").mkdir(parents=True)
    (tmp_path / "xstage-bench" / "nodes" / "bare.toml").write_text('names = ["NVIDIA X9"]\n')
    with pytest.raises(DataError, match="how many SMs of bare"):
        SimDevice("bare")
