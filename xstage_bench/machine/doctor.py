"""Can this machine be measured, and what would spoil a number here? Facts in, findings out; no CUDA context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from xstage_bench.machine.fabric import Fabric
from xstage_bench.machine.finding import Finding
from xstage_bench.machine.links import GENERATIONS, counted
from xstage_bench.machine.topology import Topology, TopologyGpu

#: Lowest driver of each CUDA extra.
EXTRAS: tuple[tuple[int, str], ...] = ((580, "cuda13"), (525, "cuda12"))
_SLOWDOWNS = {"sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}


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
        A snapshot of `xstage_bench.machine.environment`.
    has_cupy : bool, optional
        Default: whether CuPy is installed here (it is not imported).

    Returns
    -------
    list of Finding
        ``fail`` and ``waived`` mean that no GPU pair can be measured; ``warn`` that a number may be worse than it could be.
    """
    findings = [_driver(topology, environment), *_shown(topology, environment)]
    if not topology.gpus:
        return findings
    findings += [_cupy(environment, find_spec("cupy") is not None if has_cupy is None else has_cupy), _pairs(topology)]
    findings += [Finding("visible GPUs", "warn", note) for note in topology.notes]
    visible = [gpu for gpu in environment["gpus"] if gpu.get("index") is not None]
    by_number = {facts.get("nvml_index"): facts for facts in visible}
    for gpu in topology.gpus:
        facts = by_number.get(gpu.nvml_index, {})
        findings += [_identity(gpu, facts), _modes(gpu, facts), _links(gpu, facts)]
    for facts in visible:
        findings += [_others(facts), _clocks(facts), *_errors(facts)]
    return [*findings, *_unanswered(topology)]


def can_measure(findings: Sequence[Finding]) -> bool:
    """Whether a pair of GPUs can be measured with these findings."""
    return all(f.status in ("ok", "warn") for f in findings)


def _driver(topology: Topology, environment: Mapping[str, Any]) -> Finding:
    facts = environment["nvml"] or {"driver": None, "cuda": None}
    if topology.unseen is not None:
        hints = {
            "MIG": "nvidia-smi -mig 0 as root gives the GPU back whole",
            "does not answer": "nvidia-smi; dmesg; then reset the GPU or restart the machine",
            "CUDA shows none": "check CUDA_VISIBLE_DEVICES",
        }
        load = "load the driver, or give the container its GPUs (docker run --gpus all)"
        return Finding("driver", "fail", topology.unseen, next((hint for word, hint in hints.items() if word in topology.unseen), load))
    if not topology.gpus:
        reason = environment["reason"] or "NVML finds none"
        return Finding("driver", "waived", f"no GPU here ({reason})", "xstage profile runs on a simulated node here")
    words = "{driver}, CUDA {cuda}".format(**{k: facts[k] or "unknown" for k in ("driver", "cuda")})
    if facts["driver"] is None:
        why = facts.get("unavailable", {}).get("driver", "no reason given")
        return Finding("driver", "warn", f"the driver's version is not known ({why}), {len(topology.gpus)} GPUs", "nvidia-smi")
    if cuda_extra(facts["driver"]) is None:
        return Finding("driver", "fail", f"driver {words} is too old", f"install driver {EXTRAS[-1][0]} or later")
    return Finding("driver", "ok", f"driver {words}, {len(topology.gpus)} GPUs")


def _cupy(environment: Mapping[str, Any], present: bool) -> Finding:
    driver = (environment["nvml"] or {}).get("driver")
    extra = cuda_extra(driver) or EXTRAS[-1][1]
    if present:
        versions = {name: environment["versions"].get(name) for name in ("cupy-cuda13x", "cupy-cuda12x")}
        found = next((f"{name} {version}" for name, version in versions.items() if version), "installed")
        if found.startswith("cupy-cuda13x") and cuda_extra(driver) == "cuda12":
            return Finding(
                "cupy", "fail", f"{found} needs driver {EXTRAS[0][0]}, and this is {driver}", f"pip install 'xstage-bench[{extra}]'"
            )
        return Finding("cupy", "ok", found)
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


def _shown(topology: Topology, environment: Mapping[str, Any]) -> list[Finding]:
    """Say which GPUs a process is shown, where that was restricted: NVML ignores it, CUDA does not."""
    variables = {n: v for n, v in environment["variables"].items() if n in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER") and v is not None}
    hidden = sum(1 for gpu in environment["gpus"] if gpu.get("index") is None)
    if not variables and not hidden:
        return []
    words = ", ".join(f"{name}={value}" for name, value in variables.items()) or "CUDA itself"
    return [Finding("visible devices", "ok", f"{words}: {len(topology.gpus)} GPU(s) shown, {hidden} hidden; numbers here are CUDA's")]


def _identity(gpu: TopologyGpu, facts: Mapping[str, Any]) -> Finding:
    """The join between NVML and CUDA, by UUID."""
    check = f"GPU {gpu.index}"
    name, uuid, address = (known or "unknown" for known in (gpu.name, gpu.uuid, gpu.pci_address))
    detail = f"{name}, UUID {uuid}, PCI {address}, NVML's number {gpu.nvml_index}"
    if not facts:
        return Finding(check, "warn", f"{detail}: NVML's facts of it could not be joined", "run it again; nvidia-smi -L")
    return Finding(check, "ok", detail)


def _modes(gpu: TopologyGpu, facts: Mapping[str, Any]) -> Finding:
    """MIG, confidential computing and the fabric: each refuses peer stores where it is not as it should be."""
    check = f"GPU {gpu.index} modes"
    if gpu.refusal is not None:
        return Finding(check, "warn", gpu.refusal, "xstage topo shows which pairs that costs")
    words = {None: "unknown", True: "on", False: "off"}
    record = Fabric(**facts["fabric_record"]) if facts.get("fabric_record") else None
    detail = f"MIG {words[facts.get('mig')]}, ECC {words[facts.get('ecc')]}, fabric {'unknown' if record is None else record.words()}"
    if facts.get("virtualization") not in (None, "none"):
        detail += f", {facts['virtualization'].replace('_', ' ')}"
    if record is not None and record.limited:
        return Finding(check, "warn", detail, "nvidia-smi -q, section Fabric; numbers are of the bandwidth that is left")
    return Finding(check, "ok", detail)


def _links(gpu: TopologyGpu, facts: Mapping[str, Any]) -> Finding:
    check = f"GPU {gpu.index} links"
    if gpu.link_state == "by_design":
        return Finding(check, "ok", "the driver shows no NVLink of this card; its peers are reached over PCIe")
    if gpu.links_active is None or gpu.links_expected is None:
        return Finding(check, "warn", f"the driver does not say which of {gpu.links_present} NVLinks are up", "nvidia-smi nvlink -s")
    up = f"{gpu.links_active} of {gpu.links_expected if gpu.link_state == 'broken' else gpu.links_present} NVLinks are up"
    if gpu.links_active < gpu.links_expected:
        down = [str(link["link"]) for link in facts.get("links", ()) if link["active"] is False]
        if gpu.link_state == "by_configuration":
            up += f", and {gpu.links_expected} are on GPUs of its kind here: a bridge is missing or not seated"
        elif down:
            up += f" (down: {', '.join(down)})"
        hint = "nvidia-smi nvlink -s; numbers are of the links left; where that is meant: --expect-links"
        return Finding(check, "warn", up, f"{hint} {gpu.links_active}")
    if not gpu.links_active:
        return Finding(check, "ok", f"{up}: no bridge is fitted; its peers are reached over PCIe")
    if gpu.link_state == "by_configuration":
        up += f", as expected ({gpu.links_expected})"
    numbers = sorted({link["version"] for link in facts.get("links", ()) if link.get("version") is not None})
    versions = [GENERATIONS.get(number, f"generation {number}") for number in numbers]
    generation = f", NVLink {'/'.join(versions)}" if versions else ""
    rate = f", {gpu.line_rate_gb_per_s:.0f} GB/s in each direction" if gpu.line_rate_gb_per_s else ""
    return Finding(check, "ok", up + generation + rate)


def _others(gpu: Mapping[str, Any]) -> Finding:
    check = f"GPU {gpu['index']} users"
    others = gpu.get("other_processes")
    if others is None:
        return Finding(check, "ok", "the driver does not say who else uses this GPU")
    if not others:
        return Finding(check, "ok", "no other process uses this GPU")
    pids = ", ".join(str(p["pid"]) for p in others[:5])
    return Finding(check, "warn", f"{len(others)} other process(es) use this GPU: {pids}", "wait until they end")


def _clocks(gpu: Mapping[str, Any]) -> Finding:
    check = f"GPU {gpu['index']} clocks"
    reasons = gpu.get("clock_event_reasons")
    slow = [reason for reason in reasons or () if reason in _SLOWDOWNS]
    now = f"SM {gpu.get('sm_clock_mhz') or '?'} of {gpu.get('sm_clock_max_mhz') or '?'} MHz"
    if slow:
        return Finding(check, "warn", f"{now}, held down by {', '.join(slow)}", "nvidia-smi -q -d PERFORMANCE")
    return Finding(
        check, "ok", f"{now}, {', '.join(reasons) if reasons else 'nothing holds it down' if reasons == [] else 'reasons unknown'}"
    )


def _errors(gpu: Mapping[str, Any]) -> list[Finding]:
    findings, check = [], f"GPU {gpu['index']} link errors"
    links = gpu.get("links", ())
    totals = Counter[str]()
    for link in links:
        totals.update(counted(link["errors"]))
    del totals["effective_errors"]  # of NVLink 5: what a retry put right
    for kind, total in totals.items():
        if total:
            findings.append(Finding(check, "warn", f"{total} {kind} errors since the driver was loaded"))
    unread = [link for link in links if link["active"] and not counted(link["errors"])]
    if unread:
        why = next(iter(unread[0]["errors"].get("unavailable", {}).values()), "no reason given")
        findings.append(Finding(check, "warn", f"the error counters of {len(unread)} links cannot be read ({why})", "nvidia-smi nvlink -e"))
    if gpu.get("ecc_uncorrected"):
        detail = f"{gpu['ecc_uncorrected']} uncorrected memory errors since the driver was loaded"
        findings.append(Finding(f"GPU {gpu['index']} ECC", "warn", detail, "reset the GPU or replace it"))
    return findings


def _unanswered(topology: Topology) -> list[Finding]:
    """Say once what the driver did not say of what decides which pairs are usable; the rest is null with its reason in the document."""
    if not topology.unavailable:
        return []
    words = ", ".join(f"{name} ({reason})" for name, reason in topology.unavailable.items())
    return [Finding("unanswered", "ok", f"the driver does not say: {words}")]
