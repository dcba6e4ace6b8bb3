"""Nodes for the fake NVML, built from a few words each: written by hand from public topologies, not recorded (data/node-h200-x2.json is).

Public facts used: DGX H100 (18 NVLink 4 links of 26.562 GB/s per GPU to NVSwitches), H20 (78 SMs, 18 links), DGX A100 (12 NVLink 3 links of
25 GB/s to NVSwitches), DGX-1 with V100 (6 NVLink 2 links of 25 GB/s, a hybrid cube mesh with 1 or 2 links between neighbours and none
between others), L40S (no NVLink).
"""

from __future__ import annotations

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


def nodes() -> dict[str, dict[str, Any]]:
    """All of them, new each time, so that a test may break one."""
    cube = direct("Tesla V100-SXM2-32GB", 8, CUBE_MESH, 2, 25000)
    for a in range(8):
        cube["gpus"][a]["p2p"] = {cube["gpus"][b]["uuid"]: 3 for b in range(8) if a != b and CUBE_MESH.get((min(a, b), max(a, b)), 0) == 0}
    one_down = switched("NVIDIA H100 80GB HBM3", 8, 18, 6, 26562)
    one_down["gpus"][3]["links"]["down"] = [7]
    return {
        "8 x H100": switched("NVIDIA H100 80GB HBM3", 8, 18, 6, 26562),
        "8 x H20": switched("NVIDIA H20", 8, 18, 6, 26562),
        "8 x A100, 12 links": switched("NVIDIA A100-SXM4-80GB", 8, 12, 4, 25000),
        "one link down": one_down,
        "PCIe only": node([gpu(i, "NVIDIA L40S") | {"links": links(0, 0, 0, 0, "")} for i in range(4)]),
        "mixed": cube,
    }
