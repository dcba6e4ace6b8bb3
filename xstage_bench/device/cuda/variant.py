"""Each flavour, layout and completion is a compile-time variant of ``cuda/burst.cu``: the macros that make it, and its shared memory."""

from __future__ import annotations

from dataclasses import dataclass

from xstage_bench.errors import UsageError
from xstage_bench.io.identity import PLACED, stand_ins
from xstage_bench.schedule.bursts import MAX_BURSTS_ON_DEVICE, MAX_WARPS, Schedule
from xstage_bench.schedule.completion import DEFAULT, WHO, completion_of
from xstage_bench.schedule.flavour import FLAVOURS, KINDS, Flavour
from xstage_bench.schedule.layouts import LAYOUTS, Layout

OWN_FLAVOUR, OWN_LAYOUT = "xstage_own_flavour.cuh", "xstage_own_layout.cuh"
MAX_BURSTS_BULK = 64
_SEGMENTS = ("none", "rows", "tile", "placed")
_TIMELINE_BYTES = MAX_WARPS * 128 * 4
_HEAD_BYTES = 256  # item, producer, clocks
_SWIZZLE_BYTES = 1024
_BULK_STEPS_BYTES = 13 * 128  # BULK_SOURCES of cuda/pattern.cuh, 128 bytes apart


@dataclass(frozen=True, slots=True)
class Variant:
    """What a launch is compiled for. It crosses to the worker process, which may not know the user's own flavours and layouts by name."""

    flavour: Flavour
    layout: str = "contiguous"
    completion: str = DEFAULT
    own_layout: Layout | None = None

    def defines(self) -> dict[str, str]:
        """Preprocessor definitions of ``cuda/burst.cu``."""
        f, layout, completion = self.flavour, self.own_layout or LAYOUTS[self.layout], completion_of(self.completion)
        words = {
            "XSTAGE_FLAVOUR": f.function,
            "XSTAGE_KIND": str(KINDS.index(f.kind)),
            "XSTAGE_BYTES": str(f.bytes),
            "XSTAGE_ACTIVE_LANES": str(layout.active_lanes),
            "XSTAGE_OFFSET": str(layout.offset_bytes),
            "XSTAGE_SEGMENTS": str(_SEGMENTS.index(layout.segments)),
            "XSTAGE_COMPLETION": str(completion.number),
            "XSTAGE_BY": str(WHO.index(completion.who)),
        }
        if f.element == "bf16x2":
            words["XSTAGE_BF16"] = "1"
        if f.source is not None:
            words["XSTAGE_OWN_FLAVOUR"] = "1"
        if layout.function:
            words[PLACED] = layout.function
        if layout.source is not None:
            words["XSTAGE_OWN_LAYOUT"] = "1"
        return words

    def headers(self) -> dict[str, str]:
        """Return the user's own sources, by the names under which they are included, and what stands in for ``cuda/layouts.cuh``."""
        own = {OWN_FLAVOUR: self.flavour.source, OWN_LAYOUT: self.own_layout.source if self.own_layout else None}
        return {**stand_ins(self.defines()), **{name: text for name, text in own.items() if text is not None}}

    def shared_bytes(self, warps: int = MAX_WARPS, *, timeline: bool = False) -> int:
        """Return the shared memory that a CTA of this variant needs when `warps` warps store."""
        bursts = MAX_BURSTS_BULK if self.flavour.bulk else MAX_BURSTS_ON_DEVICE
        per_burst = 16 + MAX_WARPS * (28 if self.flavour.bulk else 20)
        source = warps * (self.flavour.bytes + _BULK_STEPS_BYTES) if self.flavour.bulk else 0
        if self.flavour.kind == "tensor":  # sources begin where a swizzle does
            source = (warps * -(-(self.flavour.bytes + _BULK_STEPS_BYTES) // _SWIZZLE_BYTES) + 1) * _SWIZZLE_BYTES
        return _HEAD_BYTES + bursts * per_burst + source + (_TIMELINE_BYTES if timeline else 0)


def variant_of(schedule: Schedule) -> Variant:
    """Return the variant that a schedule needs."""
    layout = LAYOUTS[schedule.layout]
    return Variant(FLAVOURS[schedule.flavour], schedule.layout, schedule.completion, layout if layout.source is not None else None)


#: Shared memory of one CTA, on every architecture that has bulk copies.
BULK_SHARED_BYTES = 227 * 1024


def check_shared_memory(schedule: Schedule) -> None:
    """Refuse bulk copies whose sources do not fit into an SM; `UsageError` says how many warps do."""
    variant = variant_of(schedule)
    room = BULK_SHARED_BYTES
    if variant.flavour.bulk and variant.shared_bytes(schedule.warps) > room:
        most = max(w for w in range(MAX_WARPS) if w == 0 or variant.shared_bytes(w) <= room)
        raise UsageError(
            f"{schedule.warps} warps of {schedule.flavour}: their sources do not fit into shared memory", f"use at most {most}"
        )
