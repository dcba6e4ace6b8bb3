"""Can this machine be measured, and what would spoil a number here? Facts in, findings out; no CUDA context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from xstage_bench.topology import Topology

Status = Literal["ok", "warn", "fail", "waived"]
#: Lowest driver of each CUDA extra.
EXTRAS: tuple[tuple[int, str], ...] = ((580, "cuda13"), (525, "cuda12"))
_SLOWDOWNS = {"sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One check: what was looked at, how it stands, what was seen, and what to do about it."""

    check: str
    status: Status
    detail: str
    hint: str | None = None


def cuda_extra(driver: str | None) -> str | None:
    """Return the extra of xstage-bench that fits a driver version, null when there is none.

    Parameters
    ----------
    driver : str or None
        For example ``"580.159.03"``.
    """
    major = (driver or "").partition(".")[0]
    if not major.isdecimal():
        return None
    return next((extra for lowest, extra in EXTRAS if int(major) >= lowest), None)


def examine(topology: Topology, environment: Mapping[str, Any], *, has_cupy: bool | None = None) -> list[Finding]:
    """Judge a node.

    Parameters
    ----------
    topology : Topology
    environment : mapping
        A snapshot of `xstage_bench.environment`.
    has_cupy : bool, optional
        Default: whether CuPy is installed here (it is not imported).

    Returns
    -------
    list of Finding
        ``fail`` and ``waived`` mean that no GPU pair can be measured; ``warn`` that a number may be worse than it could be.
    """
    findings = [_driver(topology, environment)]
    if not topology.gpus:
        return findings
    findings += [_cupy(environment, find_spec("cupy") is not None if has_cupy is None else has_cupy), _pairs(topology)]
    findings += [Finding("visible GPUs", "warn", note) for note in topology.notes]
    visible = [gpu for gpu in environment["gpus"] if gpu.get("index") is not None]
    for gpu in topology.gpus:
        findings.append(_links(gpu.index, gpu.links_active, gpu.links_expected, gpu.refusal, gpu.line_rate_gb_per_s))
    for facts in visible:
        findings += [*_others(facts), *_clocks(facts), *_errors(facts)]
    return findings


def can_measure(findings: Sequence[Finding]) -> bool:
    """Whether a pair of GPUs can be measured with these findings."""
    return all(f.status in ("ok", "warn") for f in findings)


def _driver(topology: Topology, environment: Mapping[str, Any]) -> Finding:
    facts = environment["nvml"]
    if topology.unseen is not None:
        load = "load the driver, or give the container its GPUs (docker run --gpus all)"
        return Finding("driver", "fail", topology.unseen, "check CUDA_VISIBLE_DEVICES" if topology.nvml else load)
    if not topology.gpus:
        reason = environment["reason"] or "NVML finds none"
        return Finding("driver", "waived", f"no GPU here ({reason})", "xstage profile runs on a simulated node here")
    if cuda_extra(facts["driver"]) is None:
        return Finding("driver", "fail", f"driver {facts['driver']} is too old", f"install driver {EXTRAS[-1][0]} or later")
    return Finding("driver", "ok", f"driver {facts['driver']}, CUDA {facts['cuda']}, {len(topology.gpus)} GPUs")


def _cupy(environment: Mapping[str, Any], present: bool) -> Finding:
    if present:
        versions = {name: environment["versions"].get(name) for name in ("cupy-cuda13x", "cupy-cuda12x")}
        return Finding("cupy", "ok", next((f"{name} {version}" for name, version in versions.items() if version), "installed"))
    extra = cuda_extra(environment["nvml"]["driver"]) or EXTRAS[-1][1]
    return Finding("cupy", "fail", "CuPy is not installed, and the cuda backend needs it", f"pip install 'xstage-bench[{extra}]'")


def _pairs(topology: Topology) -> Finding:
    usable = topology.usable_pairs()
    if not usable:
        hint = "xstage topo; xstage profile --peer host measures stores to host memory" if topology.host_gpus() else "xstage topo"
        return Finding("pairs", "fail", topology.why_not(), hint)
    lost = len(topology.connections) - len(usable)
    if lost:
        detail = f"{len(usable)} of {len(topology.connections)} ordered pairs are usable; {topology.why_not()}"
        return Finding("pairs", "warn", detail, "xstage topo")
    return Finding("pairs", "ok", f"{len(usable)} ordered pairs are usable")


def _links(index: int, active: int, expected: int, refusal: str | None, rate: float | None) -> Finding:
    check = f"GPU {index} links"
    if refusal is not None:
        return Finding(check, "warn", refusal)
    if not expected:
        return Finding(check, "ok", "this card has no NVLink; its peers are reached over PCIe")
    if active < expected:
        detail = f"{active} of {expected} NVLinks are up"
        return Finding(check, "warn", detail, "nvidia-smi nvlink -s (numbers will be those of the links left)")
    return Finding(check, "ok", f"{active} of {expected} NVLinks are up" + (f", {rate:.0f} GB/s in each direction" if rate else ""))


def _others(gpu: Mapping[str, Any]) -> list[Finding]:
    others = gpu.get("other_processes")
    if not others:
        return []
    pids = ", ".join(str(p["pid"]) for p in others[:5])
    return [Finding(f"GPU {gpu['index']} users", "warn", f"{len(others)} other process(es) use this GPU: {pids}", "wait until they end")]


def _clocks(gpu: Mapping[str, Any]) -> list[Finding]:
    slow = [reason for reason in gpu.get("clock_event_reasons") or () if reason in _SLOWDOWNS]
    if not slow:
        return []
    return [Finding(f"GPU {gpu['index']} clocks", "warn", f"held down by {', '.join(slow)}", "nvidia-smi -q -d PERFORMANCE")]


def _errors(gpu: Mapping[str, Any]) -> list[Finding]:
    findings = []
    for kind in ("replay", "recovery", "crc"):
        total = sum(link["errors"].get(kind) or 0 for link in gpu.get("links", ()))
        if total:
            findings.append(Finding(f"GPU {gpu['index']} link errors", "warn", f"{total} {kind} errors since the driver was loaded"))
    if gpu.get("ecc_uncorrected"):
        detail = f"{gpu['ecc_uncorrected']} uncorrected memory errors since the driver was loaded"
        findings.append(Finding(f"GPU {gpu['index']} ECC", "warn", detail, "reset the GPU or replace it"))
    return findings
