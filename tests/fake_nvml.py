"""An NVML fed from a recorded node: the same functions, the same error class, no driver.

A fault is made by changing the node before (or between) calls: a link down (``down``), a lost GPU (``lost``), a P2P status, a fabric
record (``fabric``), a query that the driver does not support (``unsupported``: names, at first those that the node ``lacks``).
"""

# ruff: noqa: N802, N815 - NVML's own names

from __future__ import annotations

import copy
import ctypes
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NODE = Path(__file__).parent / "data" / "node-h200-x2.json"
NOT_SUPPORTED, NO_LIBRARY, GPU_IS_LOST = 3, 12, 15
TEXTS = {NOT_SUPPORTED: "Not Supported", NO_LIBRARY: "NVML Shared Library Not Found", GPU_IS_LOST: "GPU is lost"}


class NVMLError(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(TEXTS.get(code, str(code)))
        self.value = code


def fabric_record(version: int) -> type[ctypes.Structure]:
    """One of NVML's three records of the fabric; the later ones begin with a version and end with the health."""
    head = [("version", ctypes.c_uint)] if version > 1 else []
    body = [("clusterUuid", ctypes.c_uint8 * 16), ("status", ctypes.c_uint), ("cliqueId", ctypes.c_uint32), ("state", ctypes.c_uint)]
    tail = [("healthMask", ctypes.c_uint32), ("healthSummary", ctypes.c_uint8)][: version - 1]
    return type(f"FabricInfo{version}", (ctypes.Structure,), {"_fields_": [*head, *body, *tail]})


class FakeNvml:
    """A module-like NVML over a node description; ``started`` counts init minus shutdown."""

    NVMLError = NVMLError
    c_nvmlGpuFabricInfo_t = fabric_record(1)
    c_nvmlGpuFabricInfo_v2_t = fabric_record(2)
    c_nvmlGpuFabricInfo_v3_t = fabric_record(3)

    def __init__(self, node: dict[str, Any] | None = None, **changes: Any) -> None:
        self.node = copy.deepcopy(json.loads(NODE.read_text())) if node is None else node
        self.node.update(changes)
        self.started = 0
        self.unsupported: set[str] = set(self.node.get("lacks", ()))

    @property
    def gpus(self) -> list[dict[str, Any]]:
        return self.node["gpus"]

    def __getattribute__(self, name: str) -> Any:
        if name.startswith(("nvml", "c_nvml")) and name in object.__getattribute__(self, "unsupported"):
            raise NVMLError(NOT_SUPPORTED)
        return object.__getattribute__(self, name)

    def nvmlInit(self) -> None:
        if self.node.get("library") is False:
            raise NVMLError(NO_LIBRARY)
        self.started += 1

    def nvmlShutdown(self) -> None:
        self.started -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.node["driver"]

    def nvmlSystemGetNVMLVersion(self) -> bytes:
        return self.node["nvml"].encode()  # bindings before 11.5 gave bytes

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.node["cuda_driver"]

    def nvmlSystemGetConfComputeState(self) -> Any:
        return SimpleNamespace(ccFeature=self.node["confidential_computing"])

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        if self.gpus[index].get("lost"):
            raise NVMLError(GPU_IS_LOST)
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: dict[str, Any]) -> str:
        return gpu["uuid"]

    def nvmlDeviceGetName(self, gpu: dict[str, Any]) -> str:
        return gpu["name"]

    def nvmlDeviceGetPciInfo(self, gpu: dict[str, Any]) -> Any:
        return SimpleNamespace(busId=gpu["bus_id"])

    def nvmlDeviceGetClockInfo(self, gpu: dict[str, Any], kind: int) -> int:
        return {1: gpu["sm_clock_mhz"], 2: gpu["memory_clock_mhz"]}[kind]

    def nvmlDeviceGetMaxClockInfo(self, gpu: dict[str, Any], kind: int) -> int:
        return {1: gpu["sm_clock_max_mhz"]}[kind]

    def nvmlDeviceGetCurrentClocksEventReasons(self, gpu: dict[str, Any]) -> int:
        return gpu["clock_events"]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, gpu: dict[str, Any]) -> int:
        return gpu["clock_events"]

    def nvmlDeviceGetPowerUsage(self, gpu: dict[str, Any]) -> int:
        return gpu["power_mw"]

    def nvmlDeviceGetEnforcedPowerLimit(self, gpu: dict[str, Any]) -> int:
        return gpu["power_limit_mw"]

    def nvmlDeviceGetTemperature(self, gpu: dict[str, Any], sensor: int) -> int:
        return gpu["temperature_c"]

    def nvmlDeviceGetMemoryInfo(self, gpu: dict[str, Any]) -> Any:
        return SimpleNamespace(used=gpu["memory_used_bytes"])

    def nvmlDeviceGetMigMode(self, gpu: dict[str, Any]) -> list[int]:
        return gpu["mig"]

    def nvmlDeviceGetEccMode(self, gpu: dict[str, Any]) -> list[int]:
        return gpu["ecc"]

    def nvmlDeviceGetTotalEccErrors(self, gpu: dict[str, Any], kind: int, counter: int) -> int:
        return gpu["ecc_uncorrected"]

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: dict[str, Any]) -> list[Any]:
        return [SimpleNamespace(**process) for process in gpu["processes"]]

    def nvmlDeviceGetGpuFabricInfoV(self, gpu: dict[str, Any], info: Any) -> None:
        known = {"state": gpu["fabric_state"], **gpu.get("fabric", {})}
        for name, _ in info.contents._fields_:
            if name == "clusterUuid":
                info.contents.clusterUuid[:] = bytes.fromhex(known.get(name, "00" * 16))
            else:
                setattr(info.contents, name, known.get(name, 0))

    def nvmlDeviceGetGpuFabricInfo(self, gpu: dict[str, Any], info: Any) -> None:
        FakeNvml.nvmlDeviceGetGpuFabricInfoV(self, gpu, info)

    def nvmlDeviceGetVirtualizationMode(self, gpu: dict[str, Any]) -> int:
        return gpu.get("virtualization", 0)

    def nvmlDeviceGetNvLinkState(self, gpu: dict[str, Any], link: int) -> int:
        self._link(gpu, link)
        return 0 if link in gpu["links"].get("down", ()) else 1

    def nvmlDeviceGetNvLinkVersion(self, gpu: dict[str, Any], link: int) -> int:
        return self._link(gpu, link)["version"]

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, gpu: dict[str, Any], link: int) -> int:
        return self._link(gpu, link)["remote_type"]

    def nvmlDeviceGetNvLinkRemotePciInfo(self, gpu: dict[str, Any], link: int) -> Any:
        remote = self._link(gpu, link)["remote_bus_id"]
        return SimpleNamespace(busId=remote if isinstance(remote, str) else remote[link])

    def nvmlDeviceGetP2PStatus(self, a: dict[str, Any], b: dict[str, Any], index: int) -> int:
        return a.get("p2p", {}).get(b["uuid"], 0)

    def nvmlDeviceGetNvLinkErrorCounter(self, gpu: dict[str, Any], link: int, counter: int) -> int:
        value = self._field(gpu, {0: 161, 1: 162, 2: 163}[counter], link)
        if value.nvmlReturn:
            raise NVMLError(value.nvmlReturn)
        return value.value.ullVal

    def nvmlDeviceGetFieldValues(self, gpu: dict[str, Any], asked: list[tuple[int, int]]) -> list[Any]:
        return [self._field(gpu, field, scope) for field, scope in asked]

    def _field(self, gpu: dict[str, Any], field: int, scope: int) -> Any:
        links = gpu["links"]
        whole = {202: gpu["bytes_sent"], 204: gpu["bytes_received"]}
        each = {164: links["speed_mb_per_s"] if scope < links["count"] else None, **{int(k): v for k, v in links["errors"].items()}}
        value = (whole if scope == 0xFFFFFFFF else each).get(field)
        if isinstance(value, dict):
            value = value.get(str(scope), 0)
        if value is None:
            return SimpleNamespace(nvmlReturn=NOT_SUPPORTED)
        return SimpleNamespace(nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=value))

    def _link(self, gpu: dict[str, Any], link: int) -> dict[str, Any]:
        if link >= gpu["links"]["count"]:
            raise NVMLError(NOT_SUPPORTED)
        return gpu["links"]
