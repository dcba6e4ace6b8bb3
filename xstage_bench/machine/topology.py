"""Which GPUs of this node can store to which, over what, and why the others cannot. NVML only: no CUDA context."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from xstage_bench.machine.links import active_links, line_rate_gb_per_s, read_links
from xstage_bench.machine.nvml import NvmlGpu, NvmlUnavailable, ask, list_gpus, open_nvml, pci_bus_gpus, whole
from xstage_bench.machine.visible_devices import cuda_enumeration, visible_gpus
from xstage_bench.schedule.device import Node

_P2P_WRITE = 1
_P2P_OK = 0
_P2P_REASONS = {
    1: "the chipset does not support peer access",
    2: "the GPU does not support peer access",
    3: "peer access is not possible across this PCIe topology",
    4: "peer access is switched off in the driver's settings",
    5: "peer access is not supported",
    6: "the driver does not know whether peer access works",
}
_FABRIC_NOT_READY = {1: "has not started", 2: "is still starting"}


@dataclass(frozen=True, slots=True)
class TopologyGpu:
    """One visible GPU. `index` is CUDA's number, `nvml_index` NVML's; `links_expected` is 0 for a card without NVLink.

    `refusal` says why nothing can be measured on this GPU, whatever the pair (MIG, fabric manager not ready).
    """

    index: int
    nvml_index: int
    name: str | None
    uuid: str | None
    pci_address: str | None
    links_expected: int
    links_active: int
    line_rate_gb_per_s: float | None
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """One ordered pair: what carries its stores (``NV18``, ``PCIe``, ``none``), whether it is usable, and why not."""

    source: int
    destination: int
    label: str
    links: int | None
    usable: bool
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """The GPUs in CUDA's order and all ordered pairs of them.

    `unseen` is null, or why the GPUs that this machine has do not answer: such a machine must not be taken for one without GPUs.
    """

    gpus: tuple[TopologyGpu, ...]
    connections: tuple[Connection, ...]
    notes: tuple[str, ...] = ()
    nvml: bool = True
    unseen: str | None = None

    def usable_pairs(self) -> tuple[tuple[int, int], ...]:
        """Ordered pairs that can be measured."""
        return tuple((c.source, c.destination) for c in self.connections if c.usable)

    def host_gpus(self) -> tuple[int, ...]:
        """GPUs whose stores to pinned host memory can be measured: all that nothing refuses as a whole."""
        return tuple(g.index for g in self.gpus if g.refusal is None)

    def why_not_host(self) -> str:
        """One line that says why no GPU can store to host memory."""
        if self.unseen is not None or not self.gpus:
            return self.why_not()
        return "; ".join(f"GPU {g.index}: {g.refusal}" for g in self.gpus if g.refusal is not None)

    def why_not(self) -> str:
        """One line that says why no pair is usable."""
        if self.unseen is not None:
            return self.unseen
        if not self.gpus:
            return "no GPU is visible" + (f" ({'; '.join(self.notes)})" if self.notes else "")
        if len(self.gpus) == 1:
            return f"only one GPU is visible ({self.gpus[0].name}); a pair is needed"
        reasons = list(dict.fromkeys(f"{c.source}>{c.destination}: {c.reason}" for c in self.connections if not c.usable))
        return "; ".join(reasons[:3]) + (f"; and {len(reasons) - 3} more pairs" if len(reasons) > 3 else "")

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return asdict(self)


def read_topology(
    nvml: Any | None = None,
    environ: Mapping[str, str] | None = None,
    *,
    enumerate_cuda: Callable[[], tuple[list[str] | None, str | None]] | None = None,
    bus: Callable[[], list[str]] = pci_bus_gpus,
) -> Topology:
    """Read the GPUs that CUDA will show and the links between them.

    Parameters
    ----------
    nvml : module-like, optional
        Default ``pynvml``; tests give a recorded node.
    environ : mapping, optional
        Default ``os.environ``: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER count.
    enumerate_cuda : callable, optional
        CUDA's own enumeration (`cuda_enumeration`); asked by default only when the real NVML is.
    bus : callable
        PCI addresses of NVIDIA GPUs on the bus, to tell a missing driver from a missing GPU.

    Returns
    -------
    Topology
        Empty, with `unseen` set, when GPUs are there but do not answer; empty without it when there is none.
    """
    environ = os.environ if environ is None else environ
    if enumerate_cuda is None and nvml is None:
        enumerate_cuda = cuda_enumeration
    try:
        with open_nvml(nvml) as lib:
            everything = list_gpus(lib)
            uuids = enumerate_cuda()[0] if enumerate_cuda is not None and everything else None
            seen = visible_gpus(everything, environ, uuids)
            lost = [f"GPU {g.nvml_index} (NVML's number) does not answer: {g.reason}" for g in everything if g.handle is None]
            return _describe(lib, seen.gpus, (*seen.notes, *lost), _unseen(everything, seen.gpus, lost))
    except NvmlUnavailable as error:
        on_bus = bus()
        unseen = f"{len(on_bus)} NVIDIA GPU(s) on the PCI bus ({', '.join(on_bus[:4])}) but {error}" if on_bus else None
        return Topology((), (), (str(error),), nvml=False, unseen=unseen)


def from_node(node: Node) -> Topology:
    """Return the topology of a device that knows only which pairs exist (the simulator, a replayed run)."""
    gpus = tuple(TopologyGpu(g.index, g.index, g.name, g.uuid, g.pci_address, 0, 0, node.line_rate_gb_per_s) for g in node.gpus)
    unusable = node.unusable or {}
    connections = []
    for a, b in ((a.index, b.index) for a in node.gpus for b in node.gpus if a.index != b.index):
        usable = (a, b) in node.pairs
        reason = None if usable else unusable.get(f"{a}>{b}", "not measured")
        connections.append(Connection(a, b, "peer" if usable else "none", None, usable, reason))
    return Topology(gpus, tuple(connections), nvml=False)


def matrix(topology: Topology) -> list[list[str]]:
    """Return the labels by source and destination, ``-`` on the diagonal; an unusable pair's label carries ``!``."""
    label = {(c.source, c.destination): c.label + ("" if c.usable else "!") for c in topology.connections}
    return [[label.get((a.index, b.index), "-") for b in topology.gpus] for a in topology.gpus]


def _unseen(everything: list[NvmlGpu], seen: tuple[NvmlGpu, ...], lost: list[str]) -> str | None:
    """Why no GPU is left although NVML knows some."""
    if seen or not everything:
        return None
    if lost and len(lost) == len(everything):
        return "; ".join(lost)
    return f"this node has {len(everything)} GPU(s) but CUDA shows none (CUDA_VISIBLE_DEVICES?)"


def _describe(nvml: Any, gpus: tuple[NvmlGpu, ...], notes: tuple[str, ...], unseen: str | None) -> Topology:
    confidential = _confidential(nvml)
    links = [read_links(nvml, g.handle) for g in gpus]
    described = tuple(_gpu(nvml, index, gpu, links[index], confidential) for index, gpu in enumerate(gpus))
    pairs = [(a, b) for a in range(len(gpus)) for b in range(len(gpus)) if a != b]
    connections = tuple(_connect(nvml, gpus, described, links, a, b) for a, b in pairs)
    return Topology(described, connections, (*notes, *_hidden_peers(gpus, links)), unseen=unseen)


def _gpu(nvml: Any, index: int, gpu: NvmlGpu, links: list[dict[str, Any]], confidential: str | None) -> TopologyGpu:
    return TopologyGpu(
        index,
        gpu.nvml_index,
        gpu.name,
        gpu.uuid,
        gpu.pci_address,
        links_expected=len(links),
        links_active=len(active_links(links)),
        line_rate_gb_per_s=line_rate_gb_per_s(links),
        refusal=confidential or _refusal(nvml, gpu.handle),
    )


def _hidden_peers(gpus: tuple[NvmlGpu, ...], links: list[list[dict[str, Any]]]) -> list[str]:
    """Name peers at the far end of direct links that are not visible here: lost in a container, or hidden by CUDA_VISIBLE_DEVICES."""
    visible = {g.pci_address for g in gpus}
    notes = []
    for index, own in enumerate(links):
        far = [link["remote_pci_address"] for link in active_links(own) if link["remote_type"] == "gpu"]
        for address in dict.fromkeys(a for a in far if a is not None and a not in visible):
            notes.append(f"GPU {index} has {far.count(address)} NVLinks to a GPU at {address} that is not visible here")
    return notes


def _connect(
    nvml: Any, gpus: tuple[NvmlGpu, ...], described: tuple[TopologyGpu, ...], links: list[list[dict[str, Any]]], a: int, b: int
) -> Connection:
    count = _shared_links(links[a], links[b], gpus[b].pci_address)
    status, _ = ask(nvml, "nvmlDeviceGetP2PStatus", gpus[a].handle, gpus[b].handle, _P2P_WRITE, convert=whole)
    for end in (described[a], described[b]):
        if end.refusal is not None:
            return Connection(a, b, f"NV{count}" if count else "none", count, False, f"GPU {end.index}: {end.refusal}")
    for end in (described[a], described[b]):
        if end.links_expected and not end.links_active:
            reason = f"GPU {end.index}: 0 of {end.links_expected} NVLinks are up"
            return Connection(a, b, "none", 0, False, reason)
    if status is not None and status != _P2P_OK:
        label = f"NV{count}" if count else "none"
        return Connection(a, b, label, count, False, _P2P_REASONS.get(status, f"peer access status {status}"))
    if count:
        return Connection(a, b, f"NV{count}", count, True)
    if status == _P2P_OK:
        return Connection(a, b, "PCIe", 0, True)
    return Connection(a, b, "none", 0, False, "no NVLink joins them and the driver does not say whether PCIe peer access works")


def _shared_links(a: list[dict[str, Any]], b: list[dict[str, Any]], address_b: str | None) -> int:
    """Links between two GPUs: the direct ones, else through a switch as many as both have."""
    up_a, up_b = active_links(a), active_links(b)
    direct = sum(1 for link in up_a if link["remote_type"] == "gpu" and link["remote_pci_address"] == address_b)
    if direct and address_b is not None:
        return direct
    return min(sum(1 for link in up if link["remote_type"] == "switch") for up in (up_a, up_b))


def _refusal(nvml: Any, handle: Any) -> str | None:
    mig, _ = ask(nvml, "nvmlDeviceGetMigMode", handle, convert=lambda modes: whole(modes[0]))
    if mig == 1:
        return "MIG is on, and MIG slices have no peer access (switch it off: nvidia-smi -mig 0)"
    state, _ = fabric_state(nvml, handle)
    if state in _FABRIC_NOT_READY:
        return f"the NVLink fabric manager {_FABRIC_NOT_READY[state]} (check: systemctl status nvidia-fabricmanager)"
    return None


def _confidential(nvml: Any) -> str | None:
    feature, _ = ask(nvml, "nvmlSystemGetConfComputeState", convert=lambda state: whole(state.ccFeature))
    on = feature == 1
    return "confidential-computing mode is on, and peer stores are then refused or encrypted (switch it off on the host)" if on else None


def fabric_state(nvml: Any, handle: Any) -> tuple[int | None, str | None]:
    """NVML's state of the NVLink fabric: 0 not supported, 1 not started, 2 in progress, 3 completed; or why it is unknown."""
    info, reason = ask(nvml, "c_nvmlGpuFabricInfo_v2_t")
    if reason is None:
        _, reason = ask(nvml, "nvmlDeviceGetGpuFabricInfoV", handle, ctypes.pointer(info))  # the binding passes it on as it is
    return (None, reason) if reason is not None else (int(info.state), None)
