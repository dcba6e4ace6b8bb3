"""Which GPUs of this node can store to which, over what, and why the others cannot. NVML only: no CUDA context."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from xstage_bench.machine.connections import Connection, End, connect
from xstage_bench.machine.fabric import read_fabric
from xstage_bench.machine.links import LinkState, active_links, count_links, line_rate_gb_per_s, most_active, read_links
from xstage_bench.machine.nvml import NvmlGpu, NvmlUnavailable, ask, list_gpus, open_nvml, pci_bus_gpus, whole
from xstage_bench.machine.visible_devices import cuda_enumeration, visible_gpus
from xstage_bench.schedule.device import Node


@dataclass(frozen=True, slots=True)
class TopologyGpu:
    """One visible GPU. `index` is CUDA's number, `nvml_index` NVML's; null where the driver does not say.

    Of the `links_present` NVLinks, `links_expected` should be up: all, or as many as the user says (0 for a card without NVLink);
    `link_state` says how that stands. `line_rate_gb_per_s` is of all links that are up, in one direction; a pair has its own.
    `refusal` says why nothing can be measured on this GPU, whatever the pair (MIG, fabric not ready or unhealthy).
    """

    index: int
    nvml_index: int
    name: str | None
    uuid: str | None
    pci_address: str | None
    links_expected: int | None
    links_active: int | None
    line_rate_gb_per_s: float | None
    refusal: str | None = None
    links_present: int = 0
    link_state: LinkState = "unknown"


@dataclass(frozen=True, slots=True)
class Topology:
    """The GPUs in CUDA's order and all ordered pairs of them.

    `unseen` is null, or why the GPUs that this machine has do not answer: such a machine must not be taken for one without GPUs.
    `unavailable` is what the driver did not say, by name, with its reason.
    """

    gpus: tuple[TopologyGpu, ...]
    connections: tuple[Connection, ...]
    notes: tuple[str, ...] = ()
    nvml: bool = True
    unseen: str | None = None
    unavailable: dict[str, str] = field(default_factory=dict)

    def usable_pairs(self) -> tuple[tuple[int, int], ...]:
        """Ordered pairs that can be measured."""
        return tuple((c.source, c.destination) for c in self.connections if c.usable)

    def by_uuid(self, numbers: Mapping[str | None, int]) -> dict[tuple[int, int], Connection]:
        """Return the ordered pairs by another library's numbers of the GPUs; those that cannot be joined are left out."""
        number = {g.index: numbers[g.uuid] for g in self.gpus if g.uuid is not None and g.uuid in numbers}
        ends = {c: (number.get(c.source), number.get(c.destination)) for c in self.connections}
        return {(a, b): c for c, (a, b) in ends.items() if a is not None and b is not None}

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
            return f"only one GPU is visible ({self.gpus[0].name or 'its name is not known'}); a pair is needed"
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
    expect_links: int | None = None,
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
    expect_links : int, optional
        NVLinks that should be up on each GPU; default: as many as it has, or as its like has where they end in a connector.

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
            return _describe(lib, seen.gpus, (*seen.notes, *lost), _unseen(lib, everything, seen.gpus, lost), expect_links)
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


def _unseen(nvml: Any, everything: list[NvmlGpu], seen: tuple[NvmlGpu, ...], lost: list[str]) -> str | None:
    """Why no GPU is left although NVML knows some."""
    if seen or not everything:
        return None
    if lost and len(lost) == len(everything):
        return "; ".join(lost)
    sliced = any(g.handle is not None and _mig(nvml, g.handle)[0] == 1 for g in everything)
    why = "MIG is on, and its slices have no peer access: nvidia-smi -mig 0" if sliced else "CUDA_VISIBLE_DEVICES?"
    return f"this node has {len(everything)} GPU(s) but CUDA shows none ({why})"


def _describe(nvml: Any, gpus: tuple[NvmlGpu, ...], notes: tuple[str, ...], unseen: str | None, expect: int | None) -> Topology:
    unavailable: dict[str, str | None] = {}
    confidential, unavailable["confidential computing"] = _confidential(nvml)
    links = [read_links(nvml, g.handle) for g in gpus]
    most = most_active([(g.name, own) for g, own in zip(gpus, links, strict=True)])
    ends = []
    for index, (gpu, own) in enumerate(zip(gpus, links, strict=True)):
        mig, unavailable["MIG"] = _mig(nvml, gpu.handle)
        fabric, unavailable["fabric"] = read_fabric(nvml, gpu.handle)
        sliced = "MIG is on, and MIG slices have no peer access (switch it off: nvidia-smi -mig 0)" if mig == 1 else None
        refusal = confidential or sliced or (fabric.refusal if fabric is not None else None)
        ends.append(End(index, gpu, own, count_links(gpu.name, own, most[gpu.name], expect), fabric, refusal))
    joined = [connect(nvml, a, b) for a in ends for b in ends if a is not b]
    for gpu in gpus:
        unavailable |= gpu.unanswered
    unavailable["peer access"] = next((reason for _, reason in joined if reason is not None), None)
    for fact in ("active", "remote_type", "remote_pci_address", "gb_per_s"):
        reasons = [link.get("unavailable", {}).get(fact) for own in links for link in own]
        unavailable[f"NVLink {fact}"] = next((reason for reason in reasons if reason is not None), None)
    said = {name: reason for name, reason in unavailable.items() if reason is not None}
    described = tuple(_gpu(end) for end in ends)
    return Topology(described, tuple(c for c, _ in joined), (*notes, *_hidden_peers(gpus, links)), unseen=unseen, unavailable=said)


def _gpu(end: End) -> TopologyGpu:
    gpu, count, rate = end.gpu, end.count, line_rate_gb_per_s(end.links)
    return TopologyGpu(
        end.index, gpu.nvml_index, gpu.name, gpu.uuid, gpu.pci_address, count.expected, count.active, rate, end.refusal, count.present,
        count.state,
    )  # fmt: skip


def _hidden_peers(gpus: tuple[NvmlGpu, ...], links: list[list[dict[str, Any]]]) -> list[str]:
    """Name peers at the far end of direct links that are not visible here: lost in a container, or hidden by CUDA_VISIBLE_DEVICES."""
    visible = {g.pci_address for g in gpus}
    if None in visible:  # whose address is not known may be any of them
        return []
    notes = []
    for index, own in enumerate(links):
        far = [link["remote_pci_address"] for link in active_links(own) if link["remote_type"] == "gpu"]
        for address in dict.fromkeys(a for a in far if a is not None and a not in visible):
            notes.append(f"GPU {index} has {far.count(address)} NVLinks to a GPU at {address} that is not visible here")
    return notes


def _mig(nvml: Any, handle: Any) -> tuple[int | None, str | None]:
    return ask(nvml, "nvmlDeviceGetMigMode", handle, convert=lambda modes: whole(modes[0]))


def _confidential(nvml: Any) -> tuple[str | None, str | None]:
    feature, reason = ask(nvml, "nvmlSystemGetConfComputeState", convert=lambda state: whole(state.ccFeature))
    on = "confidential-computing mode is on, and peer stores are then refused or encrypted (switch it off on the host)"
    return on if feature == 1 else None, reason
