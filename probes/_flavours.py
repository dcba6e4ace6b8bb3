"""Which flavours the probes of flavours ask for, and bursts of the same sizes for all of them as far as their operations divide these."""

from collections.abc import Sequence

from xstage_bench.schedule.flavour import FLAVOURS, Flavour

MAX_OPERATIONS = 2048  # per producer and burst
SOURCES_BYTES = 128 * 1024  # of all warps of an SM together: what bulk copies are made from must fit into its shared memory


def rows() -> list[Flavour]:
    """All but aliases of another flavour's machine code."""
    return [f for f in FLAVOURS.values() if f.alias_of is None]


def warp_counts(flavour: Flavour, wanted: Sequence[int]) -> list[int]:
    """Warp counts whose sources fit into an SM."""
    return [w for w in wanted if not flavour.bulk or w * flavour.bytes <= SOURCES_BYTES]


def sizes(flavour: Flavour, warps: int, wanted: Sequence[int], operations: Sequence[int] = ()) -> list[int]:
    """Bytes per producer: whole groups of operations near the `wanted` sizes, and of bulk copies so many `operations` of each warp."""
    unit = warps * flavour.warp_store_bytes
    step = unit * flavour.group if flavour.warp_store_bytes < 512 else unit
    found = {max(1, round(size / step)) * step for size in wanted}
    if flavour.bulk:
        found |= {unit * n for n in operations}
    return sorted(s for s in found if s // flavour.warp_store_bytes <= MAX_OPERATIONS and s <= 8 * max(wanted))
