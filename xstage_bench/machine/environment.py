"""The state of the machine around a measurement, as named facts only: never the whole environment, which may hold secrets."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from xstage_bench.machine.fabric import read_fabric
from xstage_bench.machine.links import FIELD_TRAFFIC_BYTES, count_links, counted, most_active, read_links
from xstage_bench.machine.nvml import NvmlGpu, NvmlUnavailable, ask, ask_field, list_gpus, open_nvml, put, text, whole
from xstage_bench.machine.visible_devices import cuda_enumeration, visible_gpus

#: Distributions whose versions can change a number or a file. The CUDA ones are null on a machine without an extra.
PACKAGES = (
    "xstage-bench", "numpy", "scipy", "pandas", "pyarrow", "matplotlib", "msgspec", "click", "nvidia-ml-py",
    "cupy-cuda12x", "cupy-cuda13x", "cuda-bindings", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime",
)  # fmt: skip
#: Environment variables that change what CUDA shows or does; no other is ever recorded.
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MODULE_LOADING", "CUDA_DEVICE_MAX_CONNECTIONS", "NVIDIA_VISIBLE_DEVICES",
    "XSTAGE_TIMEOUT_SCALE", "XSTAGE_DEBUG_FAULT",
)  # fmt: skip

CLOCK_EVENT_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
VIRTUALIZATION = {0: "none", 1: "passthrough", 2: "vgpu_guest", 3: "vgpu_host", 4: "vsga_host"}
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_TEMPERATURE_GPU = 0
_UNCORRECTED, _VOLATILE = 1, 0


def snapshot(nvml: Any | None = None, environ: Mapping[str, str] | None = None, *, expect_links: int | None = None) -> dict[str, Any]:
    """Describe the machine now: software, driver, and each GPU's clocks, power, links, errors and other users.

    Parameters
    ----------
    nvml : module-like, optional
        Default ``pynvml``.
    environ : mapping, optional
        Default ``os.environ``; only `VARIABLES` are read.
    expect_links : int, optional
        NVLinks that should be up on each GPU, as in `read_topology`.

    Returns
    -------
    dict
        JSON-able. ``nvml`` is null, with the ``reason``, where NVML cannot be used; ``gpus`` is then empty. A fact that the
        driver does not give is null, with its reason under the ``unavailable`` key beside it. A GPU that CUDA does not show
        has ``index`` null.
    """
    environ = os.environ if environ is None else environ
    facts: dict[str, Any] = {
        "captured": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "system": {
            "os": f"{platform.system()} {platform.release()}",
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
        },
        "versions": package_versions(),
        "variables": {name: environ.get(name) for name in VARIABLES},
        "nvml": None,
        "reason": None,
        "gpus": [],
    }
    try:
        with open_nvml(nvml) as lib:
            gpus = list_gpus(lib)
            facts["nvml"] = _driver(lib)
            cuda = cuda_enumeration()[0] if nvml is None and gpus else None
            index = {g.nvml_index: i for i, g in enumerate(visible_gpus(gpus, environ, cuda).gpus)}
            facts["gpus"] = [_gpu(lib, gpu, index.get(gpu.nvml_index)) for gpu in gpus]
            _expect(facts["gpus"], expect_links)
    except NvmlUnavailable as error:
        facts["reason"] = str(error)
    return facts


def package_versions(names: Iterable[str] = PACKAGES) -> dict[str, str | None]:
    """Return the installed version of each distribution, null where it is not installed."""
    versions: dict[str, str | None] = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    if versions.get("xstage-bench", "") is None:  # a bare checkout is not installed, but knows its version
        from xstage_bench.version import __version__

        versions["xstage-bench"] = __version__
    return versions


def link_error_deltas(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what the NVLink error counters and byte counters rose by between two snapshots.

    Returns
    -------
    dict or None
        By GPU UUID, else PCI address: ``replay``, ``recovery`` and ``crc`` summed over the links, and what else both snapshots count,
        ``bytes_sent`` and ``bytes_received``, and the ``links`` whose errors rose. A counter that went backwards (it was reset) or is
        missing on one side is null. None when either snapshot has no GPU.
    """
    if not before or not after or not before.get("gpus") or not after.get("gpus"):
        return None
    old = {key: gpu for gpu in before["gpus"] if (key := _key(gpu)) is not None}
    new = {key: gpu for gpu in after["gpus"] if (key := _key(gpu)) is not None}
    return {key: _gpu_delta(old[key], gpu) for key, gpu in new.items() if key in old and gpu.get("links")}


def _key(gpu: Mapping[str, Any]) -> str | None:
    return gpu.get("uuid") or gpu.get("pci_address")


def _gpu_delta(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    old = {link["link"]: link["errors"] for link in before.get("links") or ()}
    names = {name for link in after["links"] for name in counted(link["errors"])}
    total: dict[str, Any] = dict.fromkeys(("replay", "recovery", "crc", *sorted(names - {"replay", "recovery", "crc"})), 0)
    risen: dict[str, dict[str, int]] = {}
    for link in after["links"]:
        for name in total:
            step = _step(old.get(link["link"], {}).get(name), link["errors"].get(name))
            total[name] = None if step is None or total[name] is None else total[name] + step
            if step:
                risen.setdefault(str(link["link"]), {})[name] = step
    for way in FIELD_TRAFFIC_BYTES:
        total[f"bytes_{way}"] = _step(before.get(f"nvlink_bytes_{way}"), after.get(f"nvlink_bytes_{way}"))
    return {**total, "links": risen}


def _step(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None or after < before else after - before


def _driver(nvml: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    put(facts, "driver", ask(nvml, "nvmlSystemGetDriverVersion", convert=text))
    put(facts, "nvml", ask(nvml, "nvmlSystemGetNVMLVersion", convert=text))
    put(facts, "cuda", ask(nvml, "nvmlSystemGetCudaDriverVersion_v2"), lambda v: f"{v // 1000}.{v % 1000 // 10}")
    put(facts, "confidential_computing", ask(nvml, "nvmlSystemGetConfComputeState"), lambda state: state.ccFeature == 1)
    return facts


def _gpu(nvml: Any, gpu: NvmlGpu, index: int | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "index": index,
        "nvml_index": gpu.nvml_index,
        "uuid": gpu.uuid,
        "pci_address": gpu.pci_address,
        "name": gpu.name,
    }
    if gpu.handle is None:
        return {**facts, "unavailable": {"gpu": gpu.reason}}
    handle = gpu.handle
    for key, known in gpu.unanswered.items():
        put(facts, key, (None, known))
    put(facts, "sm_clock_mhz", ask(nvml, "nvmlDeviceGetClockInfo", handle, _SM_CLOCK, convert=whole))
    put(facts, "sm_clock_max_mhz", ask(nvml, "nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK, convert=whole))
    put(facts, "memory_clock_mhz", ask(nvml, "nvmlDeviceGetClockInfo", handle, _MEMORY_CLOCK, convert=whole))
    put(facts, "clock_event_reasons", _clock_events(nvml, handle), decode_clock_events)
    put(facts, "power_w", ask(nvml, "nvmlDeviceGetPowerUsage", handle), _watts)
    put(facts, "power_limit_w", ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", handle), _watts)
    put(facts, "temperature_c", ask(nvml, "nvmlDeviceGetTemperature", handle, _TEMPERATURE_GPU, convert=whole))
    put(facts, "memory_used_bytes", ask(nvml, "nvmlDeviceGetMemoryInfo", handle), lambda memory: int(memory.used))
    put(facts, "mig", ask(nvml, "nvmlDeviceGetMigMode", handle), lambda mode: mode[0] == 1)
    put(facts, "virtualization", ask(nvml, "nvmlDeviceGetVirtualizationMode", handle, convert=lambda mode: VIRTUALIZATION[mode]))
    fabric, reason = read_fabric(nvml, handle)
    put(facts, "fabric", (None if fabric is None else fabric.state, reason))
    put(facts, "fabric_record", (None if fabric is None else asdict(fabric), reason))
    put(facts, "ecc", ask(nvml, "nvmlDeviceGetEccMode", handle), lambda mode: mode[0] == 1)
    put(facts, "ecc_uncorrected", ask(nvml, "nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE, convert=whole))
    put(facts, "other_processes", ask(nvml, "nvmlDeviceGetComputeRunningProcesses", handle), _others)
    for way, field in FIELD_TRAFFIC_BYTES.items():
        put(facts, f"nvlink_bytes_{way}", ask_field(nvml, handle, field, _ALL_LINKS))
    facts["links"] = read_links(nvml, handle)
    return facts


def _expect(gpus: list[dict[str, Any]], expect: int | None) -> None:
    """Say of each GPU how many links should be up: those of its like that CUDA shows count, those of other tenants do not."""
    most = most_active([(gpu["name"], gpu["links"]) for gpu in gpus if gpu["index"] is not None and "links" in gpu])
    for gpu in gpus:
        if "links" in gpu:
            count = count_links(gpu["name"], gpu["links"], most.get(gpu["name"], 0), expect)
            gpu["links_expected"], gpu["links_state"] = count.expected, count.state


#: Scope that sums a traffic field over all links of a GPU.
_ALL_LINKS = 0xFFFFFFFF


def _clock_events(nvml: Any, handle: Any) -> tuple[Any, str | None]:
    answer = ask(nvml, "nvmlDeviceGetCurrentClocksEventReasons", handle, convert=whole)
    return answer if answer[1] is None else ask(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", handle, convert=whole)


def decode_clock_events(mask: int) -> list[str]:
    """Names of the bits of NVML's clock-event (throttle) mask, lowest bit first."""
    known = [name for bit, name in CLOCK_EVENT_REASONS.items() if mask & bit]
    rest = mask & ~sum(CLOCK_EVENT_REASONS)
    return [*known, f"unknown ({rest:#x})"] if rest else known


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000.0


def _others(processes: Iterable[Any], parent_of: Callable[[int], int | None] | None = None) -> list[dict[str, Any]]:
    """Processes on a GPU that are not ours; ours are this one, its parents and its children (the device's worker)."""
    parent_of = parent_of or _parent
    ours = set(_lineage(os.getpid(), parent_of))
    return [
        {"pid": int(p.pid), "used_bytes": None if p.usedGpuMemory is None else int(p.usedGpuMemory)}
        for p in processes
        if int(p.pid) not in ours and os.getpid() not in _lineage(int(p.pid), parent_of)
    ]


def _lineage(pid: int, parent_of: Callable[[int], int | None]) -> list[int]:
    line: list[int] = []
    step: int | None = pid
    while step is not None and step > 1 and step not in line:
        line.append(step)
        step = parent_of(step)
    return line


def _parent(pid: int) -> int | None:
    """Parent of a process by /proc; null where that cannot be known (another namespace, another system)."""
    if sys.platform != "linux":
        return None
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[1])
