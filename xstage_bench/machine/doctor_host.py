"""The doctor's findings about the host: what it does to peer traffic, what the container allows, whether the run has room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xstage_bench.machine.finding import Finding
from xstage_bench.machine.host import Host

#: A full profile of two GPUs takes 12 to 25 MB, and figures and report 3 more.
BYTES_PER_PAIR = 15_000_000
#: Pinned buffers and the worker's libraries, for each GPU.
_MEMORY_PER_GPU = 600_000_000
_FEWEST_PIDS = 256


def examine_host(host: Host, environment: Mapping[str, Any], pairs: int) -> list[Finding]:
    """Judge a host for a run of so many ordered pairs; where there is no GPU, only the room on its disk counts."""
    found = [_disk(host, max(1, pairs))]
    gpus = [g for g in environment["gpus"] if g.get("index") is not None]
    if not gpus:
        return found
    return [*found, _iommu(host), _acs(host), *_container(host, environment, len(gpus))]


def _disk(host: Host, pairs: int) -> Finding:
    needed = BYTES_PER_PAIR * pairs
    if host.free_bytes is None:
        return Finding("disk", "warn", "the room on the disk cannot be read", "name a folder on a local disk with --out")
    detail = f"{host.free_bytes / 1e9:.1f} GB free; a full profile of {pairs} ordered pair(s) takes about {needed / 1e6:.0f} MB"
    if host.free_bytes < needed:
        return Finding("disk", "fail", detail, "free some space, or write elsewhere: --out DIR")
    return Finding("disk", "warn" if host.free_bytes < 3 * needed else "ok", detail, "free some space, or write elsewhere: --out DIR")


def _iommu(host: Host) -> Finding:
    if host.iommu is None:
        return Finding("IOMMU", "ok", "not visible here")
    if host.iommu == "translating":
        detail = "it translates the host's own devices: peer stores over PCIe may hang, be lost or be slow (NVLink is not affected)"
        return Finding("IOMMU", "warn", detail, "boot with iommu=pt, or switch it off, where PCIe peers are used")
    return Finding("IOMMU", "ok", "off" if host.iommu == "off" else "passes the host's own devices through")


def _acs(host: Host) -> Finding:
    if host.acs_redirecting is None:
        return Finding("ACS", "ok", "not visible here: only root reads the settings of PCIe bridges")
    if host.acs_redirecting:
        few = ", ".join(host.acs_redirecting[:4])
        detail = f"{len(host.acs_redirecting)} PCIe bridge(s) redirect peer traffic to the root complex ({few}): it is slow or lost there"
        return Finding("ACS", "warn", detail, f"as root: setpci -s {host.acs_redirecting[0]} ECAP_ACS+0x6.w=0000 (NVLink is not affected)")
    return Finding("ACS", "ok", "no PCIe bridge redirects peer traffic")


def _container(host: Host, environment: Mapping[str, Any], gpus: int) -> list[Finding]:
    found = []
    shown = environment["variables"].get("NVIDIA_VISIBLE_DEVICES")
    if host.container is not None:
        detail = f"{host.container}" + (f", with NVIDIA_VISIBLE_DEVICES={shown}" if shown else "")
        found.append(Finding("container", "ok", f"inside {detail}: other users' processes and links to hidden GPUs may not be visible"))
    needed = _MEMORY_PER_GPU * gpus
    if host.memory_limit_bytes is not None and host.memory_limit_bytes < needed:
        detail = f"the container may use {host.memory_limit_bytes / 1e9:.1f} GB; {gpus} GPUs need about {needed / 1e9:.1f} GB"
        found.append(Finding("memory limit", "warn", detail, "docker run --memory, or the pod's limits"))
    if host.cpus_limit is not None and host.cpus_limit < 1:
        detail = f"the container may use {host.cpus_limit:.2f} CPUs: runs take longer, numbers do not change"
        found.append(Finding("CPU limit", "warn", detail, "docker run --cpus, or the pod's limits"))
    if host.pids_limit is not None and host.pids_limit < _FEWEST_PIDS:
        found.append(Finding("process limit", "warn", f"the container may have {host.pids_limit} threads", "docker run --pids-limit"))
    return found
