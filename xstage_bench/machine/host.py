"""What the host does to peer traffic and to a run: IOMMU, PCIe ACS, the container's limits, room on the disk. It only reads files."""

from __future__ import annotations

import os
import shutil
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

#: PCIe extended capabilities: the first stands at 0x100; id 0x000d is Access Control Services, whose control word stands 6 bytes in.
_EXTENDED, _ACS_ID, _ACS_CONTROL = 0x100, 0x000D, 6
#: Request and completion redirect: with either set a bridge sends peer traffic up to the root complex.
_REDIRECT = 0x0C
_BRIDGE_CLASS = "0x0604"
_UNLIMITED = ("max", "-1", "9223372036854771712")


@dataclass(frozen=True, slots=True)
class Host:
    """What was found; null where it cannot be read here, as in a container.

    Parameters
    ----------
    iommu : str or None
        ``off``, ``passthrough`` or ``translating``.
    acs_redirecting : tuple of str or None
        PCI addresses of bridges that redirect peer traffic; null when no bridge let its settings be read.
    container : str or None
        ``docker``, ``kubernetes``, ``container``; null outside of one.
    memory_limit_bytes, pids_limit : int or None
        Of the control group; null when unlimited or unknown.
    cpus_limit : float or None
    shm_bytes : int or None
        Size of /dev/shm.
    free_bytes : int or None
        Room in the folder that the run would go to.
    """

    iommu: str | None
    acs_redirecting: tuple[str, ...] | None
    container: str | None
    memory_limit_bytes: int | None
    cpus_limit: float | None
    pids_limit: int | None
    shm_bytes: int | None
    free_bytes: int | None


def read_host(out: Path = Path(), root: Path = Path("/")) -> Host:
    """Look at this host.

    Parameters
    ----------
    out : Path
        Where a run would be written; the nearest existing parent is asked for its room.
    root : Path
        Of the file system that /proc and /sys are read from; tests give a recorded one.
    """
    memory, cpus, pids = _limits(root)
    return Host(
        iommu=_iommu(root),
        acs_redirecting=_acs(root),
        container=_container(root),
        memory_limit_bytes=memory,
        cpus_limit=cpus,
        pids_limit=pids,
        shm_bytes=_size(root / "dev/shm"),
        free_bytes=_free(out),
    )


def _read(path: Path) -> str | None:
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").strip()
    return None


def _iommu(root: Path) -> str | None:
    """The kernel lists its IOMMUs; whether they translate for the host's own devices is the default domain's type."""
    if not (root / "sys/class").is_dir():
        return None
    units = root / "sys/class/iommu"
    if not units.is_dir() or not any(units.iterdir()):
        return "off"
    kinds = {_read(path) for path in (root / "sys/kernel/iommu_groups").glob("*/type")}
    if kinds - {None}:
        return "passthrough" if kinds <= {"identity", None} else "translating"
    words = (_read(root / "proc/cmdline") or "").split()
    return "passthrough" if "iommu=pt" in words or "iommu.passthrough=1" in words else "translating"


def _acs(root: Path) -> tuple[str, ...] | None:
    redirecting, readable = [], False
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if not (_read(device / "class") or "").startswith(_BRIDGE_CLASS):
            continue
        with suppress(OSError, struct.error):
            control = acs_control((device / "config").read_bytes())
            readable |= control is not None
            if control is not None and control & _REDIRECT:
                redirecting.append(device.name)
    return tuple(redirecting) if readable else None


def acs_control(config: bytes) -> int | None:
    """Return the ACS control word of a device's PCI configuration space; 0 without ACS, None when the extended space is not shown.

    Without privileges the kernel shows 64 bytes only.
    """
    if len(config) <= _EXTENDED:
        return None
    at, seen = _EXTENDED, set()
    while _EXTENDED <= at <= len(config) - 8 and at not in seen:
        seen.add(at)
        (head,) = struct.unpack_from("<I", config, at)
        if head & 0xFFFF == _ACS_ID:
            (control,) = struct.unpack_from("<H", config, at + _ACS_CONTROL)
            return int(control)
        at = (head >> 20) & 0xFFC
    return 0


def _container(root: Path) -> str | None:
    groups = _read(root / "proc/1/cgroup") or ""
    if "kubepods" in groups or (root / "var/run/secrets/kubernetes.io").exists():
        return "kubernetes"
    if "docker" in groups or (root / ".dockerenv").exists():
        return "docker"
    return "container" if (root / "run/.containerenv").exists() else None


def _limits(root: Path) -> tuple[int | None, float | None, int | None]:
    """Memory, CPUs and processes that the control group allows: version 2, else version 1."""
    base = root / "sys/fs/cgroup"
    memory = _number(base / "memory.max", base / "memory/memory.limit_in_bytes")
    pids = _number(base / "pids.max", base / "pids/pids.max")
    cpus = None
    whole = (_read(base / "cpu.max") or "").split()
    if not whole:
        whole = [(_read(base / "cpu" / f"cpu.cfs_{name}_us") or "max") for name in ("quota", "period")]
    if len(whole) == 2 and whole[0] not in _UNLIMITED:
        with suppress(ValueError, ZeroDivisionError):
            cpus = int(whole[0]) / int(whole[1])
    return memory, cpus, pids


def _number(*paths: Path) -> int | None:
    for path in paths:
        text = _read(path)
        if text is not None:
            return int(text) if text.isdecimal() and text not in _UNLIMITED else None
    return None


def _size(path: Path) -> int | None:
    with suppress(OSError):
        found = os.statvfs(path)
        return found.f_frsize * found.f_blocks
    return None


def _free(out: Path) -> int | None:
    for folder in (out, *out.resolve().parents):
        with suppress(OSError):
            return shutil.disk_usage(folder).free
    return None
