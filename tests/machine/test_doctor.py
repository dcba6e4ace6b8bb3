"""The doctor's findings over nodes in known states, and the CUDA extra of a driver."""

from __future__ import annotations

import runpy

import pytest

from xstage_bench.io.assets import asset_dir
from xstage_bench.machine.doctor import can_measure, cuda_extra, examine
from xstage_bench.machine.environment import snapshot
from xstage_bench.machine.topology import read_topology


def findings_of(nvml, *, has_cupy=True):
    return examine(read_topology(nvml, {}, bus=lambda: []), snapshot(nvml, {}), has_cupy=has_cupy)


def status(findings, check):
    return {f.status for f in findings if f.check == check}


def test_a_healthy_node(fake_nvml):
    findings = findings_of(fake_nvml())
    assert {f.status for f in findings} == {"ok"}
    assert can_measure(findings)
    assert any("18 of 18 NVLinks are up, NVLink 4.0, 478 GB/s" in f.detail for f in findings)
    checks = [f.check for f in findings]
    assert len(set(checks)) == len(checks), "one line for each question"
    assert {f"GPU {i}{what}" for i in (0, 1) for what in ("", " modes", " links", " users", " clocks")} < set(checks)


def test_gpus_without_a_driver_fail(fake_nvml):
    nvml = fake_nvml(library=False)
    findings = examine(read_topology(nvml, {}, bus=lambda: ["0000:18:00.0"]), snapshot(nvml, {}), has_cupy=True)
    assert status(findings, "driver") == {"fail"}
    assert not can_measure(findings)
    assert "docker run --gpus all" in (findings[0].hint or "")


@pytest.mark.parametrize(
    ("change", "shown", "hint"),
    [
        ({"mig": [1, 1]}, ["MIG-1"], "nvidia-smi -mig 0"),
        ({"lost": True}, [], "reset the GPU"),
        ({}, [], "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_gpus_that_cuda_does_not_show_are_asked_back_in_the_right_way(fake_nvml, change, shown, hint):
    nvml = fake_nvml()
    for gpu in nvml.gpus:
        gpu.update(change)
    topology = read_topology(nvml, {}, bus=lambda: [], enumerate_cuda=lambda: (shown, None))
    finding = examine(topology, snapshot(nvml, {}), has_cupy=True)[0]
    assert finding.status == "fail"
    assert hint in finding.hint


def test_cupy_is_asked_for_with_the_right_extra(fake_nvml):
    findings = findings_of(fake_nvml(driver="550.54.15"), has_cupy=False)
    assert [f.hint for f in findings if f.check == "cupy"] == ["pip install 'xstage-bench[cuda12]'"]
    assert not can_measure(findings)


def test_a_single_dead_link_warns(fake_nvml):
    nvml = fake_nvml()
    nvml.gpus[0]["links"]["down"] = [3]
    findings = findings_of(nvml)
    assert can_measure(findings)
    assert [f.detail for f in findings if f.status == "warn"] == ["17 of 18 NVLinks are up (down: 3)"]


def test_what_spoils_a_number_is_a_warning(fake_nvml):
    nvml = fake_nvml()
    nvml.gpus[0].update(clock_events=0x4, processes=[{"pid": 4194301, "usedGpuMemory": 1}], ecc_uncorrected=2)
    nvml.gpus[0]["p2p"] = {nvml.gpus[1]["uuid"]: 3}
    nvml.gpus[1]["links"]["errors"]["163"] = {"0": 5}
    findings = findings_of(nvml)
    for check in ("GPU 0 clocks", "GPU 0 users", "GPU 0 ECC", "GPU 1 link errors", "pairs"):
        assert status(findings, check) == {"warn"}, check
    assert can_measure(findings)
    assert "1 of 2 ordered pairs" in next(f.detail for f in findings if f.check == "pairs")


@pytest.mark.parametrize(
    ("driver", "extra"),
    [("580.159", "cuda13"), ("615.1", "cuda13"), ("579.99.01", "cuda12"), ("525.60", "cuda12"), ("470.82", None), (None, None)],
)
def test_the_extra_of_a_driver(driver, extra):
    assert cuda_extra(driver) == extra
    script = runpy.run_path(str(asset_dir("cuda").parent / "scripts" / "cuda_extra.py"))
    assert script["extra"](driver) == extra
