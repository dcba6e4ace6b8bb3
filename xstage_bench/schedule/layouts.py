"""The table of layouts: where the bytes of an operation go inside a producer's window. ``cuda/layouts.cuh`` computes the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from xstage_bench.errors import DataError
from xstage_bench.schedule.flavour import LANES, Flavour, enter, header_of

SEGMENT_BYTES = 256
Segments = Literal["none", "rows", "tile", "placed"]


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
    segments : {'none', 'rows', 'tile', 'placed'}
        Each 256 bytes go to a cell of their own: to rows in a scattered order, or to the rows of 128 x 128 bf16 tiles, 2 KB apart.
        Of a placed one `function` says where each lane's bytes go.
    function : str
        In ``cuda/placements.cuh`` or the user's own `source`: the byte offset for window_bytes, warp, warps, slot, lane, all ``u32``.
    source : str, optional
        The text of the user's own file.
    """

    name: str
    title: str
    active_lanes: int = LANES
    offset_bytes: int = 0
    segments: Segments = "none"
    function: str = ""
    source: str | None = None

    def takes(self, flavour: Flavour) -> bool:
        """Whether operations of this flavour can be laid out so."""
        if flavour.kind == "tensor":  # boxes of the tile's array, or of one that is as wide as a box
            return self.active_lanes == LANES and not self.offset_bytes and self.segments in ("none", "tile")
        if flavour.bulk:
            return self.active_lanes == LANES and (
                self.segments == "none" or (self.segments in ("rows", "tile") and flavour.bytes == SEGMENT_BYTES)
            )
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
        Layout("accumulator", "as tensor cores leave registers: eight rows of four lanes", segments="placed", function="place_accumulator"),
        Layout("lanes16", "16 of 32 lanes store", active_lanes=16),
        Layout("lanes24", "24 of 32 lanes store", active_lanes=24),
        Layout("offset16", "shifted by 16 bytes", offset_bytes=16),
        Layout("offset32", "shifted by 32 bytes", offset_bytes=32),
        Layout("offset64", "shifted by 64 bytes", offset_bytes=64),
    )
}


def register_layout(layout: Layout) -> None:
    """Make a layout known by its name, in schedules too; `UsageError` when the name is taken by another one."""
    enter(LAYOUTS, layout, "layout")


def recorded_layout(facts: dict[str, Any]) -> Layout:
    """Rebuild a layout of the user's own from a manifest; `DataError` when it describes none."""
    try:
        return Layout(**facts)
    except TypeError as error:
        raise DataError(f"a recorded layout is incomplete ({error})", "take the run from a copy") from None


def load_layout(path: Path) -> Layout:
    """Read a layout of the user's own: a ``.cuh`` file with one inline function and one header line. Errors as of `load_flavour`.

    ::

        // xstage-layout: name=mine function=place_mine
        static __device__ __forceinline__ u32 place_mine(u32 window_bytes, u32 warp, u32 warps, u32 slot, u32 lane) { ... }

    No two lanes' bytes may overlap within a turn of the window, and none may leave it; what is stored is verified before it is timed.
    """
    text, words = header_of(path, "layout", {"name", "function"}, "// xstage-layout: name=mine function=place_mine")
    return Layout(words["name"], f"the user's own {words['function']}", segments="placed", function=words["function"], source=text)
