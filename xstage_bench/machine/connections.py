"""What joins two GPUs, in one direction, and whether stores may cross it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xstage_bench.machine.fabric import Fabric
from xstage_bench.machine.links import LinkCount, Shared, shared_links
from xstage_bench.machine.nvml import NvmlGpu, ask, whole

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


@dataclass(frozen=True, slots=True)
class Connection:
    """One ordered pair: what carries its stores (``NV18``, ``PCIe``, ``peer``, ``none``), whether it is usable, and why not.

    ``peer`` is peer access over a path that is not known. `links` and `line_rate_gb_per_s`, in one direction, are of this pair alone;
    null where they are not known.
    """

    source: int
    destination: int
    label: str
    links: int | None
    usable: bool
    reason: str | None = None
    line_rate_gb_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class End:
    """One GPU as the end of a pair: its links, how these stand, its fabric, and what refuses it as a whole."""

    index: int
    gpu: NvmlGpu
    links: list[dict[str, Any]]
    count: LinkCount
    fabric: Fabric | None
    refusal: str | None


def connect(nvml: Any, a: End, b: End) -> tuple[Connection, str | None]:
    """Describe one ordered pair; with it, why the driver does not say whether it grants peers, or None where it does."""
    partitions = [end.fabric.partition if end.fabric is not None else None for end in (a, b)]
    apart = None not in partitions and partitions[0] != partitions[1]
    shared = shared_links(a.links, b.links, b.gpu.pci_address, one_fabric=not apart)
    status, unanswered = ask(nvml, "nvmlDeviceGetP2PStatus", a.gpu.handle, b.gpu.handle, _P2P_WRITE, convert=whole)
    label = f"NV{shared.links}" if shared.links else "none"
    why = _why_not(a, b, shared, status)
    if why is not None:
        if apart and not shared.links:
            why += f"; they are in different partitions of the NVLink fabric ({' and '.join(f'clique {p[1]}' for p in partitions if p)})"
        return Connection(a.index, b.index, label, shared.links, False, why, shared.line_rate_gb_per_s), unanswered
    if not shared.links:
        label = "PCIe" if shared.links == 0 else "peer"
    return Connection(a.index, b.index, label, shared.links, True, None, shared.line_rate_gb_per_s), unanswered


def _why_not(a: End, b: End, shared: Shared, status: int | None) -> str | None:
    for end in (a, b):
        if end.refusal is not None:
            return f"GPU {end.index}: {end.refusal}"
    for end in (a, b):
        if end.count.state == "broken" and not end.count.active:
            granted = (
                "; the driver grants peers over PCIe: xstage profile --expect-links 0 where that is meant" if status == _P2P_OK else ""
            )
            return f"GPU {end.index}: 0 of {end.count.expected} NVLinks are up{granted}"
    if status is not None and status != _P2P_OK:
        return _P2P_REASONS.get(status, f"peer access status {status}")
    if status is None and not shared.links:
        return "no NVLink joins them and the driver does not say whether PCIe peer access works"
    return None
