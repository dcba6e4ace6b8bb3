"""Which GPUs CUDA will show a process, and in which order: NVML ignores CUDA_VISIBLE_DEVICES and has an order of its own.

Everything in xstage-bench that names a GPU by a number means CUDA's number; the join to NVML is by UUID.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xstage_bench.machine.nvml import NvmlGpu


@dataclass(frozen=True, slots=True)
class Visible:
    """GPUs in CUDA's order: `gpus[i]` is CUDA device i. `notes` say what was hidden or guessed."""

    gpus: tuple[NvmlGpu, ...]
    notes: tuple[str, ...] = ()


def visible_gpus(gpus: Sequence[NvmlGpu], environ: Mapping[str, str], cuda_uuids: Sequence[str] | None = None) -> Visible:
    """Put NVML's GPUs in CUDA's order and drop those that CUDA will not show.

    Parameters
    ----------
    gpus : sequence of NvmlGpu
        In NVML's order.
    environ : mapping
        Read for CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER.
    cuda_uuids : sequence of str, optional
        What the CUDA driver itself enumerates (`cuda_enumeration`): taken as the truth where known, since only the driver
        knows which of several unlike GPUs it calls the fastest.

    Returns
    -------
    Visible
    """
    answering = [g for g in gpus if g.handle is not None]
    notes: list[str] = []
    if cuda_uuids is not None and any(g.uuid is None for g in answering):
        notes.append("NVML does not say the GPUs' UUIDs: they are taken to be in CUDA's order")
    elif cuda_uuids is not None:
        by_uuid = {g.uuid: g for g in answering}
        strangers = [u for u in cuda_uuids if u not in by_uuid]
        note = f"CUDA shows {len(strangers)} device(s) that NVML does not (MIG slices or another namespace)"
        return Visible(tuple(by_uuid[u] for u in cuda_uuids if u in by_uuid), (note,) if strangers else ())
    if len({g.name for g in answering}) > 1 and environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        notes.append("the GPUs differ and CUDA_DEVICE_ORDER is not PCI_BUS_ID: CUDA may number them differently")
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return Visible(tuple(answering), tuple(notes))
    chosen: list[NvmlGpu] = []
    for entry in (part.strip() for part in wanted.split(",")):
        match = _match(entry, answering)
        if match is None:
            # CUDA stops at the first entry that it does not know and hides the rest.
            notes.append(f"CUDA_VISIBLE_DEVICES={wanted}: entry '{entry}' matches no GPU; it and all after it are hidden")
            break
        if match in chosen:
            return Visible((), (*notes, f"CUDA_VISIBLE_DEVICES={wanted} names one GPU twice: CUDA then shows none"))
        chosen.append(match)
    return Visible(tuple(chosen), tuple(notes))


def _match(entry: str, gpus: Sequence[NvmlGpu]) -> NvmlGpu | None:
    """One entry: an index, or a UUID or any unambiguous beginning of one."""
    if entry.isdecimal():
        return gpus[int(entry)] if int(entry) < len(gpus) else None
    if not entry.startswith("GPU-"):
        return None
    found = [g for g in gpus if g.uuid is not None and g.uuid.lower().startswith(entry.lower())]
    return found[0] if len(found) == 1 else None


def cuda_enumeration() -> tuple[list[str] | None, str | None]:
    """UUIDs of the CUDA devices in CUDA's order, through cuda.bindings; no context is created.

    Returns
    -------
    uuids, reason
        The list and None, or None and why the driver could not be asked.
    """
    try:
        from cuda.bindings import driver
    except ImportError:
        return None, "cuda-bindings is not installed"
    try:
        (status,) = driver.cuInit(0)
        if status != driver.CUresult.CUDA_SUCCESS:
            return ([], None) if status == driver.CUresult.CUDA_ERROR_NO_DEVICE else (None, f"cuInit: {status.name}")
        _, count = driver.cuDeviceGetCount()
        return [_uuid_text(bytes(driver.cuDeviceGetUuid(index)[1].bytes)) for index in range(count)], None
    except (RuntimeError, OSError) as error:  # no libcuda on this machine
        return None, f"the CUDA driver library does not load: {error}"


def _uuid_text(raw: bytes) -> str:
    digits = raw.hex()
    return "GPU-" + "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))
