"""Is that good? What a drain rate is held against: the raw link, its payload, the datasheet, the copy engine, a reference node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from xstage_bench.errors import XStageError
from xstage_bench.judge.compare import load_reference
from xstage_bench.machine.facts import GpuFacts
from xstage_bench.machine.gpus import find_gpu, kind_of
from xstage_bench.model.headline import headline_rate

if TYPE_CHECKING:
    from xstage_bench.model.document import PairModel
    from xstage_bench.record.manifest import Manifest

Origin = Literal["simulated", "measured", "measured elsewhere", "computed", "datasheet"]


@dataclass(frozen=True, slots=True)
class Mark:
    """One rate on the scale, in 10^9 bytes per second and direction, where it comes from, and what it means."""

    name: str
    gb_per_s: float
    origin: Origin
    meaning: str


#: Of a line rate: this far from the registry's is that of other links (fewer, or some down): its datasheet says nothing then.
_SAME_LINK = 0.02


def marks(pair: PairModel, manifest: Manifest) -> list[Mark]:
    """Return the scale of one pair, largest first; empty when it has no rate.

    Only what is known of this kind of GPU and link is on it: an unknown card has its line rate and what it achieved.
    """
    rate = headline_rate(pair)
    if rate is None or rate[0].value is None:
        return []
    own: Origin = "simulated" if manifest.simulated else "measured"
    found = [Mark("achieved", rate[0].value, own, f"drain rate of this pair with {rate[1]} SMs")]
    line = manifest.node.line_rate(pair.pair)
    if line is None:
        return found
    found.append(Mark("raw link", line, own, "what the active links of this pair carry on the wire, headers included"))
    kind = _kind(manifest)
    link = None if kind is None else kind.link
    if kind is None or link is None or not link.line_gb_per_s.value:
        return sorted(found, key=lambda m: -m.gb_per_s)
    wire, nominal, copies = link.wire_bytes_per_byte, link.nominal_gb_per_s, link.copy_engine_gb_per_s
    whole = abs(line / link.line_gb_per_s.value - 1) <= _SAME_LINK
    if wire.value is not None and (whole or manifest.node.pair_links is not None):
        meaning = f"raw link over {wire.value:g} bytes on the wire per byte stored ({wire.status}: {wire.source})"
        found.append(Mark("payload limit", line / wire.value, "computed", meaning))
    if not whole:
        return sorted(found, key=lambda m: -m.gb_per_s)
    if nominal.value is not None:
        found.append(Mark("nominal", nominal.value, "datasheet", "what the datasheet promises in one direction"))
    if copies.value is not None:
        found.append(Mark("copy engine", copies.value, "measured elsewhere", copies.source))
    reference = None if kind.reference is None else reference_rate(kind.reference)
    if reference is not None:
        found.append(Mark("reference node", reference, "measured elsewhere", f"the same number of {kind.reference}"))
    return sorted(found, key=lambda m: -m.gb_per_s)


def _kind(manifest: Manifest) -> GpuFacts | None:
    names = {kind_of(gpu.name) for gpu in manifest.node.gpus}
    return find_gpu(names.pop()) if len(names) == 1 else None


def reference_rate(name: str) -> float | None:
    """Return the drain rate of a node that ships with this package; None where it is not installed."""
    try:
        pairs = [p for p in load_reference(name).model.pairs if not p.is_local]
    except XStageError:
        return None  # an installation without the shipped nodes still reports
    rate = headline_rate(pairs[0]) if pairs else None
    return None if rate is None else rate[0].value
