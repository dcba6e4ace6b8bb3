"""Isolated bursts of every layout: what scattered rows, tiles, idle lanes and shifts cost stores, reductions, bulk copies and boxes.

Asked for by name (``--only layouts``).
"""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.layouts import LAYOUTS

NAMES = ("st.v4", "st.v2", "st.b32", "red.v4.f32", "bulk.256", "tensor.8192", "tensor.16384")
STORES = (4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 64, 96, 128, 192, 256, 512)  # of one warp, of 512 bytes in all lanes
QUICK_STORES = (4, 16, 32, 64, 128)
WARPS = (1, 4)
BOXES = (1, 2, 3, 4, 6, 8, 12, 16, 24)  # of one warp, of tensor stores
MOST_BYTES = 1 << 20


def schedules(sweep: Sweep) -> list[Schedule]:
    """All SMs and eight, one and four warps. Operations in multiples of four, so that a payload is a whole number of plain warp-stores."""
    out = []
    for name in NAMES:
        flavour = FLAVOURS[name]
        for layout in LAYOUTS.values():
            if not layout.takes(flavour):
                continue
            per_store = layout.warp_store_bytes(flavour)
            for producers in sweep.counts((8,)):
                for warps in (4,) if sweep.quick else WARPS:
                    coarse = sweep.quick or (producers, warps) != (sweep.sm_count, 4)
                    counts = sorted(
                        {max(4, round(n / warps) * 512 // flavour.warp_store_bytes // 4 * 4) for n in (QUICK_STORES if coarse else STORES)}
                    )
                    if flavour.kind == "tensor":
                        counts = [n for n in BOXES if n * warps * per_store <= MOST_BYTES]
                    out += [
                        Schedule(
                            (Burst(n * warps * per_store),),
                            producers,
                            warps,
                            sweep.source,
                            sweep.destination,
                            flavour=name,
                            layout=layout.name,
                        )
                        for n in counts
                    ]
    return out


PROBE = Probe("layouts", "isolated bursts of every layout", schedules, effort=0.29, by_default=False)
