"""Nodes for the fake NVML, built from a few words each: written by hand from public topologies, not recorded (data/node-h200-x2.json is).

Public facts used: DGX H100 (18 NVLink 4 links of 26.562 GB/s per GPU to NVSwitches), H20 (78 SMs, 18 links), DGX A100 (12 NVLink 3 links of
25 GB/s to NVSwitches), DGX-1 with V100 (6 NVLink 2 links of 25 GB/s, a hybrid cube mesh with 1 or 2 links between neighbours and none
between others), L40S (no NVLink), HGX B200 and GB200 NVL72 (18 NVLink 5 links; one tray has 4 GPUs of 72), HGX A100 4-GPU (4 direct
links between any two), A100 and H100 PCIe (three bridges of 4 links join two cards, or none is fitted), GH200 (one GPU). What a virtual
machine with one H200 of a larger node answers was seen on a real one: no link, a fabric that is not supported, passed through.
"""

from __future__ import annotations

import copy
from typing import Any

SWITCH = "ffffffff:ff:ff.0"
#: DGX-1 with V100: links between pairs, 0 where two GPUs are not neighbours.
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1,
    (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def gpu(number: int, name: str, clock_mhz: int = 1980) -> dict[str, Any]:
    return {
        "uuid": f"GPU-{number:08x}-0000-4000-8000-00000000000{number:x}", "bus_id": f"00000000:{0x10 + 8 * number:02X}:00.0", "name": name,
        "sm_clock_mhz": 345, "sm_clock_max_mhz": clock_mhz, "memory_clock_mhz": 2619, "clock_events": 1, "power_mw": 80000,
        "power_limit_mw": 700000, "temperature_c": 30, "memory_used_bytes": 0, "mig": [0, 0], "ecc": [1, 1], "ecc_uncorrected": 0,
        "fabric_state": 3, "processes": [], "bytes_sent": None, "bytes_received": None,
    }  # fmt: skip


def links(count: int, version: int, speed: int, remote: int, to: str | list[str]) -> dict[str, Any]:
    counters = {"161": 0, "162": 0, "163": 0}
    return {"count": count, "version": version, "remote_type": remote, "remote_bus_id": to, "speed_mb_per_s": speed, "errors": counters}


def node(gpus: list[dict[str, Any]], driver: str = "570.124.06") -> dict[str, Any]:
    return {"driver": driver, "nvml": f"12.{driver}", "cuda_driver": 12080, "confidential_computing": 0, "gpus": gpus}


def switched(name: str, count: int, per_gpu: int, version: int, speed: int) -> dict[str, Any]:
    """GPUs whose links all go to NVSwitches."""
    return node([gpu(i, name) | {"links": links(per_gpu, version, speed, 2, SWITCH)} for i in range(count)])


def direct(name: str, count: int, mesh: dict[tuple[int, int], int], version: int, speed: int) -> dict[str, Any]:
    """GPUs joined by links of their own; pairs that share none reach each other over PCIe, or not at all."""
    made = [gpu(i, name) for i in range(count)]
    for i, one in enumerate(made):
        far = [made[b if a == i else a]["bus_id"] for (a, b), n in mesh.items() if i in (a, b) for _ in range(n)]
        one["links"] = links(len(far), version, speed, 0, far)
    return node(made)


#: NVLink 5 counts these in place of replay, recovery and CRC: recovery events, failed ones, errors and their rates.
NVLINK5 = {"215": 0, "214": 0, "219": 3, "221": 0, "220": 0x50F, "222": 0x1FF}
#: What WSL2 and a virtual GPU do not answer.
WSL2 = [
    "nvmlDeviceGetNvLinkState", "nvmlDeviceGetNvLinkVersion", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetGpuFabricInfoV", "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMigMode",
]  # fmt: skip
VGPU = ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetTemperature", *WSL2]
#: Drivers before these calls and records existed.
R525 = [
    "nvmlDeviceGetGpuFabricInfoV", "c_nvmlGpuFabricInfo_v3_t", "c_nvmlGpuFabricInfo_v2_t", "nvmlSystemGetConfComputeState",
    "nvmlDeviceGetCurrentClocksEventReasons",
]  # fmt: skip


def without_links(name: str, count: int, **facts: Any) -> dict[str, Any]:
    """GPUs that show no NVLink, alike in all else."""
    return node([gpu(i, name) | {"fabric_state": 0, "links": links(0, 0, 0, 0, "")} | facts for i in range(count)])


def refused(made: dict[str, Any], status: int, *groups: set[int]) -> dict[str, Any]:
    """Peers that the driver refuses: all, or those of different groups."""
    for a, one in enumerate(made["gpus"]):
        apart = [b for b in range(len(made["gpus"])) if not any({a, b} <= group for group in groups)]
        one["p2p"] = {made["gpus"][b]["uuid"]: status for b in apart}
    return made


def each(made: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """Change all GPUs of a node alike."""
    for one in made["gpus"]:
        one.update(copy.deepcopy(facts))
    return made


def nodes() -> dict[str, dict[str, Any]]:
    """All of them, new each time, so that a test may break one."""
    cube = direct("Tesla V100-SXM2-32GB", 8, CUBE_MESH, 2, 25000)
    for a in range(8):
        cube["gpus"][a]["p2p"] = {cube["gpus"][b]["uuid"]: 3 for b in range(8) if a != b and CUBE_MESH.get((min(a, b), max(a, b)), 0) == 0}
    one_down = switched("NVIDIA H100 80GB HBM3", 8, 18, 6, 26562)
    one_down["gpus"][3]["links"]["down"] = [7]
    partitions = refused(switched("NVIDIA H100 80GB HBM3", 8, 18, 6, 26562), 5, {0, 1, 2, 3}, {4, 5, 6, 7})
    for number, one in enumerate(partitions["gpus"]):
        one["fabric"] = {"cliqueId": 1 + number // 4}
    b200, tray = (switched(name, count, 18, 7, 53125) for name, count in (("NVIDIA B200", 8), ("NVIDIA GB200", 4)))
    for one in (*b200["gpus"], *tray["gpus"]):
        one["links"]["errors"] = dict(NVLINK5)
    each(tray, fabric={"cliqueId": 32766, "clusterUuid": "0b" * 16, "healthMask": 0x102A, "healthSummary": 1})
    empty = each(without_links("NVIDIA H100 PCIe", 4), links=links(18, 6, 26562, 0, "") | {"down": list(range(18))})
    bridged = direct("NVIDIA A100 80GB PCIe", 4, {(0, 1): 12, (2, 3): 12}, 4, 25000)
    half = each(switched("NVIDIA H100 80GB HBM3", 4, 18, 6, 26562), fabric_state=3)
    for one in half["gpus"]:
        one["links"]["down"] = list(range(12, 18))
    hopper = lambda: switched("NVIDIA H200", 4, 18, 6, 26562)  # noqa: E731
    old = {"driver": "525.147.05", "lacks": R525}
    return {
        "8 x H100": switched("NVIDIA H100 80GB HBM3", 8, 18, 6, 26562),
        "8 x H20": switched("NVIDIA H20", 8, 18, 6, 26562),
        "8 x A100, 12 links": switched("NVIDIA A100-SXM4-80GB", 8, 12, 4, 25000),
        "one link down": one_down,
        "PCIe only": without_links("NVIDIA L40S", 4),
        "mixed": cube,
        "8 x B200": b200,
        "GB200 tray": tray,
        "GH200": each(without_links("NVIDIA GH200 480GB", 1), links=links(18, 6, 26562, 2, SWITCH) | {"down": list(range(18))}),
        "4 x A100 board": direct("NVIDIA A100-SXM4-40GB", 4, {(a, b): 4 for a in range(4) for b in range(a + 1, 4)}, 4, 25000),
        "bridges": bridged,
        "empty connectors": empty,
        "12 of 18": half,
        "PCIe without peers": refused(without_links("NVIDIA GeForce RTX 4090", 2), 2),
        "WSL2": refused(without_links("NVIDIA RTX 6000 Ada Generation", 2), 5) | {"lacks": WSL2},
        "MIG": each(switched("NVIDIA A100-SXM4-80GB", 2, 12, 4, 25000), mig=[1, 1]),
        "vGPU": refused(without_links("NVIDIA A100X-40C", 2, virtualization=2), 5) | {"lacks": VGPU},
        "passed through": without_links("NVIDIA H200", 1, virtualization=1),
        "driver 525": switched("NVIDIA H100 80GB HBM3", 8, 18, 6, 26562) | old,
        "driver 470": switched("NVIDIA A100-SXM4-80GB", 8, 12, 4, 25000) | old | {"driver": "470.82.01"},
        "driver 590": each(hopper(), fabric={"healthMask": 0x2A, "healthSummary": 1}) | {"driver": "590.44.01"},
        "fabric not joined": each(hopper(), fabric={"status": 19}),
        "fabric unhealthy": each(hopper(), fabric={"healthMask": 0x10}),
        "fabric configured wrongly": each(hopper(), fabric={"healthMask": 0x500, "healthSummary": 2}),
        "fabric degraded": each(hopper(), fabric={"healthMask": 0x1, "healthSummary": 3}),
        "two partitions": partitions,
    }
