"""Is that good? What a drain rate is held against: the raw link, its payload, the datasheet, the copy engine, a reference node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from xstage_bench.compare import load_reference
from xstage_bench.errors import XStageError
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


@dataclass(frozen=True, slots=True)
class Kind:
    """What is known of one kind of link beside what a run measures itself. Sources: docs/flavours.md, docs/compare.md, the datasheet."""

    line_rate_gb_per_s: float
    nominal_gb_per_s: float
    wire_bytes_per_byte: float
    copy_engine_gb_per_s: float | None
    reference: str | None


#: By the GPU's name. 18 NVLink 4 links: 478 on the wire, 450 on the datasheet; a 16-byte store puts 1.12 bytes on the wire per byte
#: (2 x H200, results/h200-x2/2026-11-29-flavours/wire.json); copy engine by nvbandwidth 0.8 on 2 x H200, the same day.
KINDS: dict[str, Kind] = {
    "NVIDIA H200": Kind(478.1, 450.0, 1.12, 396.0, "h200-nv18"),
    "NVIDIA H100 80GB HBM3": Kind(478.1, 450.0, 1.12, None, None),
}
#: A line rate this far from the kind's own is that of other links (fewer, or some down): its datasheet says nothing then.
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
    line = manifest.node.line_rate_gb_per_s
    if line is None:
        return found
    found.append(Mark("raw link", line, own, "what the active links carry on the wire, headers included"))
    kind = _kind(manifest)
    if kind is None or abs(line / kind.line_rate_gb_per_s - 1) > _SAME_LINK:
        return sorted(found, key=lambda m: -m.gb_per_s)
    payload = line / kind.wire_bytes_per_byte
    found.append(Mark("payload limit", payload, "computed", f"raw link over {kind.wire_bytes_per_byte} bytes on the wire per byte stored"))
    found.append(Mark("nominal", kind.nominal_gb_per_s, "datasheet", "what the datasheet promises in one direction"))
    if kind.copy_engine_gb_per_s is not None:
        found.append(
            Mark("copy engine", kind.copy_engine_gb_per_s, "measured elsewhere", "nvbandwidth 0.8, large copies, 2 x H200, 2026-11-29")
        )
    reference = None if kind.reference is None else _reference_rate(kind.reference)
    if reference is not None:
        found.append(Mark("reference node", reference, "measured elsewhere", f"the same number of {kind.reference}"))
    return sorted(found, key=lambda m: -m.gb_per_s)


def _kind(manifest: Manifest) -> Kind | None:
    names = {gpu.name.removesuffix(" (simulated)") for gpu in manifest.node.gpus}
    return KINDS.get(names.pop()) if len(names) == 1 else None


def _reference_rate(name: str) -> float | None:
    try:
        pairs = [p for p in load_reference(name).model.pairs if not p.is_local]
    except XStageError:
        return None  # an installation without the shipped nodes still reports
    rate = headline_rate(pairs[0]) if pairs else None
    return None if rate is None else rate[0].value
