"""What belongs to a run: the GPUs that it measured and the links between them. Other tenants' faults are not its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xstage_bench.record.manifest import Manifest


def facts_of_run(manifest: Manifest) -> list[dict[str, Any]]:
    """Return what NVML said at the end of the run of the GPUs that it measured."""
    return [facts for facts in _known(manifest) if facts.get("index") in measured_gpus(manifest)]


def deltas_of_run(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Return by how much error counters rose, by GPU: without GPUs that were not measured and links that lead to such."""
    deltas = dict(manifest.link_error_deltas or {})
    known = _known(manifest)
    mine = [facts for facts in known if facts.get("index") in measured_gpus(manifest)]
    addresses = {facts.get("pci_address") for facts in mine}
    for facts in known:
        key = str(facts.get("uuid") or facts.get("pci_address"))
        if facts not in mine:
            deltas.pop(key, None)
        elif key in deltas:
            far = {
                str(link["link"])
                for link in facts.get("links") or ()
                if link.get("remote_type") == "gpu" and link.get("remote_pci_address") not in addresses and None not in addresses
            }
            deltas[key] = _without(deltas[key], far)
    return deltas


def _without(risen: dict[str, Any], links: set[str]) -> dict[str, Any]:
    """Take what these links counted out of the sums."""
    lost = {link: counts for link, counts in risen["links"].items() if link in links}
    sums = {name: risen[name] - sum(c.get(name, 0) for c in lost.values()) for name in risen if name != "links" and risen[name] is not None}
    return {**risen, **sums, "links": {link: counts for link, counts in risen["links"].items() if link not in links}}


def _known(manifest: Manifest) -> list[dict[str, Any]]:
    return (manifest.environment_after or {}).get("gpus") or []


def measured_gpus(manifest: Manifest) -> set[Any]:
    """Return the numbers of the GPUs at the ends of the pairs that were to be measured: those asked for, else all usable ones."""
    asked = manifest.options.get("pairs")
    names = asked if asked is not None else [f"{a}>{b}" for a, b in manifest.node.pairs]
    return {int(end) for name in names for end in name.split(">")}
