"""The table of layouts: where the bytes of an operation go inside a producer's window. ``cuda/layouts.cuh`` computes the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from xstage_bench.schedule.flavour import LANES, Flavour

SEGMENT_BYTES = 256
Segments = Literal["none", "rows", "tile"]


@dataclass(frozen=True, slots=True)
class Layout:
    """One layout.

    Parameters
    ----------
    name, title : str
    active_lanes : int
        Lanes that store; the others' bytes stay as they were.
    offset_bytes : int
        Shift of every operation against its natural alignment.
    segments : {'none', 'rows', 'tile'}
        Each 256 bytes go to a cell of their own: to rows in a scattered order, or to the rows of 128 x 128 bf16 tiles, 2 KB apart.
    """

    name: str
    title: str
    active_lanes: int = LANES
    offset_bytes: int = 0
    segments: Segments = "none"

    def takes(self, flavour: Flavour) -> bool:
        """Whether operations of this flavour can be laid out so."""
        if flavour.kind == "tensor":  # boxes of the tile's array, or of one that is as wide as a box
            return self.active_lanes == LANES and not self.offset_bytes and self.segments != "rows"
        if flavour.bulk:
            return self.active_lanes == LANES and (self.segments == "none" or flavour.bytes == SEGMENT_BYTES)
        return self.offset_bytes % flavour.bytes == 0

    def warp_store_bytes(self, flavour: Flavour) -> int:
        """Bytes that one operation writes."""
        return flavour.warp_store_bytes if flavour.bulk else flavour.bytes * self.active_lanes


LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout("contiguous", "each warp-store next to the one before it"),
        Layout("rows256", "256-byte segments of rows in scattered order, half a warp of 16-byte stores each", segments="rows"),
        Layout("tile128", "128 x 128 bf16 tiles, rows of 256 bytes with a stride of 2 KB", segments="tile"),
        Layout("lanes16", "16 of 32 lanes store", active_lanes=16),
        Layout("lanes24", "24 of 32 lanes store", active_lanes=24),
        Layout("offset16", "shifted by 16 bytes", offset_bytes=16),
        Layout("offset32", "shifted by 32 bytes", offset_bytes=32),
        Layout("offset64", "shifted by 64 bytes", offset_bytes=64),
    )
}
