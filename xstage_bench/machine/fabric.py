"""The NVLink fabric as one GPU sees it: the whole record that NVML keeps of it, and what in it forbids peer stores.

A fabric whose state is "completed" has only finished trying: its status says how that ended, and its health mask what has broken since.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import partial
from typing import Any

from xstage_bench.machine.nvml import ask

FABRIC_STATES = {0: "not_supported", 1: "not_started", 2: "in_progress", 3: "completed"}
_NOT_READY = {"not_started": "has not started", "in_progress": "is still starting"}
_LOOK = "(check: systemctl status nvidia-fabricmanager; nvidia-smi -q, section Fabric)"
#: NVML's records, newest first; an older driver or binding knows only the later ones.
_RECORDS = (
    ("c_nvmlGpuFabricInfo_v3_t", "nvmlDeviceGetGpuFabricInfoV"),
    ("c_nvmlGpuFabricInfo_v2_t", "nvmlDeviceGetGpuFabricInfoV"),
    ("c_nvmlGpuFabricInfo_t", "nvmlDeviceGetGpuFabricInfo"),
)
#: Parts of the health mask: where each begins, its width as a mask, and what its wrong values mean.
_WRONG_SETUP = ("system GUID", "chassis serial number", "partition", "number of NVLinks", "GPU firmware", "location", "GPU state")
_HEALTH: tuple[tuple[int, int, dict[int, str]], ...] = (
    (2, 0x3, {1: "a route is recovering"}),
    (4, 0x3, {1: "a route is unhealthy"}),
    (6, 0x3, {1: "it recovers from access time-outs"}),
    (8, 0xF, {number: f"it is configured wrongly ({what})" for number, what in enumerate(_WRONG_SETUP, 2)}),
    (12, 0x3, {2: "no partition is assigned"}),
)
#: Parts that leave less bandwidth, or none to other nodes: peers still work.
_LESS: tuple[tuple[int, int, dict[int, str]], ...] = (
    (0, 0x3, {1: "its bandwidth is degraded"}),
    (14, 0x3, {2: "the global fabric manager is not connected"}),
)
_UNHEALTHY, _LIMITED = 2, 3


@dataclass(frozen=True, slots=True)
class Fabric:
    """NVML's record of the fabric of one GPU.

    Parameters
    ----------
    state : str
        ``not_supported``, ``not_started``, ``in_progress``, ``completed``.
    status : int or None
        NVML's return code of joining the fabric, 0 for success; null before it is completed. `status_text` says it in words.
    clique_id : int or None
        Of the partition whose GPUs reach each other; `cluster_uuid` is null where the fabric is of this node alone.
    health_mask, health_summary : int or None
        As NVML gives them; null where the driver keeps none.
    unhealthy, limited : tuple of str
        What they mean: what forbids peer stores, and what only slows them.
    """

    state: str
    status: int | None = None
    status_text: str | None = None
    clique_id: int | None = None
    cluster_uuid: str | None = None
    health_mask: int | None = None
    health_summary: int | None = None
    unhealthy: tuple[str, ...] = ()
    limited: tuple[str, ...] = ()

    @property
    def refusal(self) -> str | None:
        """Why no peer can be stored to; None when nothing in the record forbids it."""
        if self.state in _NOT_READY:
            return f"the NVLink fabric manager {_NOT_READY[self.state]} {_LOOK}"
        if self.status:
            return f"the NVLink fabric could not be joined: status {self.status}, {self.status_text} {_LOOK}"
        if self.unhealthy:
            return f"the NVLink fabric is unhealthy: {', '.join(self.unhealthy)} {_LOOK}"
        return None

    @property
    def partition(self) -> tuple[str | None, int | None] | None:
        """Cluster and clique, which two GPUs share when the fabric joins them; None where the GPU has joined none."""
        return (self.cluster_uuid, self.clique_id) if self.state == "completed" and not self.status else None

    def words(self) -> str:
        """Say it in a few words."""
        cluster = f" of cluster {self.cluster_uuid}" if self.cluster_uuid else ""
        clique = f", clique {self.clique_id}{cluster}" if self.partition else ""
        return ", ".join((self.state + clique, *self.limited))


def read_fabric(nvml: Any, handle: Any) -> tuple[Fabric | None, str | None]:
    """Ask for the newest record that the driver knows; None with the reason where it has none."""
    reasons = []
    for record, function in _RECORDS:
        info, reason = ask(nvml, record)
        if reason is None:
            found, reason = ask(nvml, function, handle, _pointer(info), convert=partial(_fabric, nvml, info))
            if reason is None:
                return found, None
        reasons.append(reason or "")
    return None, next((r for r in reasons if not r.endswith("AttributeError")), reasons[-1])


def _pointer(info: Any) -> Any:
    return ctypes.pointer(info) if isinstance(info, ctypes.Structure) else info  # the binding passes it on as it is


def _fabric(nvml: Any, info: Any, _: Any) -> Fabric:
    number = int(info.state) & 0xFF  # one byte in the driver's record
    state = FABRIC_STATES.get(number, f"unknown ({number})")
    if state != "completed":
        return Fabric(state)
    status, cluster = int(info.status), bytes(info.clusterUuid).hex()
    mask, summary = getattr(info, "healthMask", None), getattr(info, "healthSummary", None)
    mask, summary = (None if value is None else int(value) for value in (mask, summary))
    unhealthy, limited = _meanings(mask or 0, _HEALTH), _meanings(mask or 0, _LESS)
    return Fabric(
        state, status, str(nvml.NVMLError(status)) if status else None, int(info.cliqueId),
        cluster if any(c != "0" for c in cluster) else None, mask, summary,
        unhealthy or (("its summary says so",) if summary == _UNHEALTHY else ()),
        limited or (("its capacity is limited",) if summary == _LIMITED else ()),
    )  # fmt: skip


def _meanings(mask: int, parts: tuple[tuple[int, int, dict[int, str]], ...]) -> tuple[str, ...]:
    return tuple(words[value] for shift, width, words in parts if (value := mask >> shift & width) in words)
