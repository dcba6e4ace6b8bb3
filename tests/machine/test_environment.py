"""Snapshots hold named facts, null with a reason where there is none, and never the process environment."""

from __future__ import annotations

import json
import os
from types import SimpleNamespace

import pytest

from xstage_bench.machine.environment import decode_clock_events, link_error_deltas, package_versions, snapshot

A, B = "GPU-11111111-aaaa-4aaa-8aaa-000000000001", "GPU-22222222-bbbb-4bbb-8bbb-000000000002"


def test_the_facts_of_a_node(fake_nvml):
    facts = snapshot(fake_nvml(), {"CUDA_VISIBLE_DEVICES": "1,0"})
    assert facts["nvml"] == {"driver": "580.159", "nvml": "13.580.159", "cuda": "13.0", "confidential_computing": False}
    first, second = facts["gpus"]
    assert (first["uuid"], first["index"], first["nvml_index"]) == (A, 1, 0)  # CUDA's number follows CUDA_VISIBLE_DEVICES
    assert second["index"] == 0
    assert first["pci_address"] == "0000:18:00.0"
    assert (first["power_w"], first["power_limit_w"]) == (118.0, 700.0)
    assert (first["fabric"], first["ecc"], first["mig"]) == ("completed", True, False)
    assert first["clock_event_reasons"] == ["gpu_idle"]
    assert len(first["links"]) == 18
    assert first["links"][3] == {
        "link": 3, "active": True, "version": 6, "remote_type": "switch", "remote_pci_address": "0000:05:00.0",
        "gb_per_s": 26.562, "errors": {"replay": 0, "recovery": 0, "crc": 0},
    }  # fmt: skip
    assert "unavailable" not in first
    json.dumps(facts, allow_nan=False)


def test_what_the_driver_lacks_is_null_with_its_reason(fake_nvml):
    nvml = fake_nvml()
    nvml.unsupported = {"nvmlDeviceGetEccMode", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetFieldValues"}
    gpu = snapshot(nvml, {})["gpus"][0]
    assert gpu["ecc"] is None
    assert gpu["unavailable"]["ecc"] == "Not Supported"
    assert gpu["clock_event_reasons"] == ["gpu_idle"], "by the older function"
    assert gpu["links"][0]["gb_per_s"] is None
    assert gpu["links"][0]["errors"] == {"replay": 0, "recovery": 0, "crc": 0}, "by the older counters"
    json.dumps(gpu, allow_nan=False)


def test_what_is_lost_or_missing_has_a_reason(fake_nvml):
    nvml = fake_nvml()
    nvml.gpus[1]["lost"] = True
    lost = snapshot(nvml, {})["gpus"][1]
    assert (lost["nvml_index"], lost["index"], lost["unavailable"]) == (1, None, {"gpu": "GPU is lost"})
    facts = snapshot(fake_nvml(library=False), {})
    assert (facts["nvml"], facts["gpus"]) == (None, [])
    assert "NVML does not start" in facts["reason"]


def test_other_processes_are_named_and_ours_are_not(fake_nvml):
    nvml = fake_nvml()
    parent = os.getppid()
    nvml.gpus[0]["processes"] = [{"pid": p, "usedGpuMemory": 5} for p in (os.getpid(), parent, 4194301)]
    nvml.gpus[0]["processes"].append({"pid": 4194302, "usedGpuMemory": None})
    others = snapshot(nvml, {})["gpus"][0]["other_processes"]
    assert others == [{"pid": 4194301, "used_bytes": 5}, {"pid": 4194302, "used_bytes": None}]
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda gpu: [SimpleNamespace(pid=2**22 - 5, usedGpuMemory=1)]
    gone = snapshot(nvml, {})["gpus"][0]["other_processes"]
    assert gone == [{"pid": 2**22 - 5, "used_bytes": 1}], "gone while it is looked at"


def test_deltas_join_by_uuid_and_name_the_links(fake_nvml):
    nvml = fake_nvml()
    nvml.gpus[1]["links"]["errors"]["161"] = 9
    before = snapshot(nvml, {})
    nvml.gpus[0]["links"]["errors"]["163"] = {"4": 7}
    nvml.gpus[0]["bytes_sent"] += 5000
    nvml.gpus[1]["links"]["errors"]["161"] = 1
    nvml.gpus.reverse()  # the driver may enumerate in another order after a reset
    deltas = link_error_deltas(before, snapshot(nvml, {}))
    assert deltas is not None
    assert deltas[A] == {"replay": 0, "recovery": 0, "crc": 7, "bytes_sent": 5000, "bytes_received": 0, "links": {"4": {"crc": 7}}}
    assert (deltas[B]["crc"], deltas[B]["replay"]) == (0, None), "a counter that was reset says nothing"
    for none in (None, {}, {"gpus": []}):
        assert link_error_deltas(none, before) is None


@pytest.mark.parametrize(("bits", "names"), [(0x44, ["sw_power_cap", "hw_thermal_slowdown"]), (0x1000, ["unknown (0x1000)"]), (0, [])])
def test_clock_events(bits, names):
    assert decode_clock_events(bits) == names


def test_versions_of_what_is_and_is_not_installed():
    versions = package_versions(["numpy", "no-such-distribution", "xstage-bench"])
    assert versions["no-such-distribution"] is None
    assert versions["numpy"]
    assert versions["xstage-bench"]  # a bare checkout knows it too
