"""From a fitted run to an entry of the registry, and to what is worth contributing: nothing that names a host, a user, a path or a chip."""

from __future__ import annotations

import getpass
import json
import re
import socket
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from xstage_bench.errors import DataError
from xstage_bench.io.json_file import encode_json
from xstage_bench.machine.facts import Fact, GpuFacts, Link, StageFacts
from xstage_bench.machine.gpus import find_gpu
from xstage_bench.model.document import Model, Validation
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.headline import headline_entry, headline_rate
from xstage_bench.record.manifest import Manifest

#: Where contributions go (CONTRIBUTING).
WHERE = "one pull request with the folder results/NODE/profile; CONTRIBUTING says what it needs"
_SECRETS = {
    "a UUID": re.compile(r"(GPU|MIG)-[0-9a-f]{4,}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-"),
    "a PCI address": re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\b", re.I),
    "a path": re.compile(r"(?<![\w.:/-])(/|~/|[A-Z]:\\)[\w.-]+[/\\]"),
    "an address": re.compile(r"\b\d{1,3}(\.\d{1,3}){3}\b|[\w.]+@[\w.]+"),
}
_KEPT = ("schema_version", "backend", "created", "versions", "seed", "counts", "kernels", "cuda_sources")


def entry_of(manifest: Manifest, model: Model, model_name: str) -> GpuFacts:
    """Return the registry's entry of a measured node.

    Raises
    ------
    DataError
        The run is simulated, its GPUs are of several kinds, or no pair has a drain rate.
    """
    if manifest.simulated:
        raise DataError("a simulated run is no node", "measure GPUs: xstage profile")
    names = {g.name for g in manifest.node.gpus}
    pair = next((p for p in model.pairs if not p.is_local and p.pair not in manifest.failed_pairs and p.burst_gap), None)
    rate = None if pair is None else headline_rate(pair)
    if len(names) != 1 or pair is None or rate is None:
        raise DataError(
            "an entry is of one kind of GPU and needs a pair with a drain rate", "xstage fit RUN, or measure again: xstage profile"
        )
    gpu = manifest.node.gpus[0]
    source = f"xstage profile, pair {pair.pair}, {manifest.created[:10]}"
    entry, known = headline_entry(pair), find_gpu(gpu.name)
    one = next((d.makespan if d.makespan.value else d.sustained for d in pair.drain if d.producers == 1), None)
    line = manifest.node.line_rate_gb_per_s
    peer = "pcie" if pair.pair.endswith(">-1") or not line else "nvlink"
    assert entry is not None
    stage = StageFacts(
        drain_gb_per_s=_fact(rate[0], source),
        sm_gb_per_s=_fact(one, source),
        capacity_bytes=_fact(entry.capacity_bytes, source),
        sm_capacity_bytes=_fact(entry.capacity_bytes_per_producer, source),
        t0_ns=_fact(entry.t0_cycles.scaled(1e3 / model.sm_clock_mhz), f"{source}: {entry.bytes} bytes of each of {entry.producers} SMs"),
        units=_plain(None if pair.node_basis is None else float(len(pair.node_basis.placement.units)), source),
    )
    link = known.link if known else Link()
    base = known or GpuFacts(names=(gpu.name,))
    return msgspec.structs.replace(
        base,
        names=(gpu.name,),
        reference=None,
        model=model_name,
        sm_count=_plain(float(gpu.sm_count), source),
        sm_clock_mhz=_plain(gpu.sm_clock_mhz, source),
        stage=stage,
        link=msgspec.structs.replace(link, kind=peer, line_gb_per_s=_plain(line, source)),
    )


def _fact(estimate: Estimate | None, source: str) -> Fact:
    if estimate is None or estimate.value is None:
        return Fact(status="unknown", source=(estimate and estimate.reason) or "not measured by this run")
    return Fact(value=_short(estimate.value), low=_short(estimate.low), high=_short(estimate.high), status="measured", source=source)


def _plain(value: float | None, source: str) -> Fact:
    return Fact(status="unknown", source="not read in this run") if value is None else Fact(value=value, status="measured", source=source)


def _short(value: Any) -> Any:
    return None if value is None else float(f"{value:.6g}")


def entry_toml(facts: GpuFacts) -> str:
    """Write an entry as the TOML that the registry reads; what is unknown for want of a source is left out."""
    plain = msgspec.to_builtins(facts)
    return "\n".join(_lines(plain, "")) + "\n"


def _lines(table: dict[str, Any], head: str) -> Iterator[str]:
    nested = {k: v for k, v in table.items() if isinstance(v, dict) and "status" not in v}
    for key, value in table.items():
        if value is None or key in nested or (isinstance(value, dict) and value["status"] == "unknown"):
            continue
        if isinstance(value, dict):
            inside = ", ".join(f"{k} = {json.dumps(v)}" for k, v in value.items() if v is not None)
            yield f"{key} = {{ {inside} }}"
        else:
            yield f"{key} = {json.dumps(value)}"
    for key, value in nested.items():
        inner = list(_lines(value, f"{head}{key}."))
        if inner:
            yield from ("", f"[{head}{key}]", *inner)


def contribution(name: str, manifest: Manifest, model: Model, validation: Validation | None) -> dict[str, bytes]:
    """Return the files worth contributing, by name: entry, model, validation, and what of the manifest says how it was measured.

    Raises
    ------
    DataError
        As `entry_of`; or a secret is left in one of them, which it names without showing it.
    """
    facts = entry_of(manifest, model, f"{name}.model.json")
    head = {key: getattr(manifest, key) for key in _KEPT}
    gpus = [replace(g, uuid=None, pci_address=None) for g in manifest.node.gpus]
    how = {**head, "node": replace(manifest.node, gpus=tuple(gpus), unusable=None), "driver": _driver(manifest)}
    files = {f"{name}.toml": entry_toml(facts).encode(), f"{name}.model.json": encode_json(model), "measured.json": encode_json(how)}
    if validation is not None:
        files["validation.json"] = encode_json(validation)
    for file, data in files.items():
        found = secrets_in(data.decode())
        if found:
            raise DataError(
                f"{file} holds {', '.join(found)}, which nobody else should see", "take it out of the run's names and notes, fit again"
            )
    return files


def secrets_in(text: str) -> list[str]:
    """Say what kinds of secrets a text holds: UUIDs, PCI addresses, paths, addresses, this host's and this user's name."""
    own = {"the name of this host": socket.gethostname(), "the name of this user": _user()}
    named = [what for what, word in own.items() if len(word) > 3 and re.search(rf"\b{re.escape(word)}\b", text)]
    return [what for what, form in _SECRETS.items() if form.search(text)] + named


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # no such user in a container
        return ""


def _driver(manifest: Manifest) -> str | None:
    return ((manifest.environment_before or {}).get("nvml") or {}).get("driver")


def packed(files: dict[str, bytes]) -> bytes:
    """Pack files into a .tar.gz that says nothing of who packed it or when."""
    out = BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(Path(name).name)
            member.size = len(data)
            tar.addfile(member, BytesIO(data))
    return out.getvalue()
