"""Isolated bursts of every layout: what scattered rows, tiles, idle lanes and shifts cost stores, reductions and row-sized bulk copies.

Asked for by name (``--only layouts``).
"""

from xstage_bench.flavour import FLAVOURS
from xstage_bench.layouts import LAYOUTS
from xstage_bench.probe import Probe, Sweep
from xstage_bench.schedule import Burst, Schedule

NAMES = ("st.v4", "st.v2", "st.b32", "red.v4.f32", "bulk.256")
STORES = (4, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 64, 96, 128, 192, 256, 512)  # of one warp, of 512 bytes in all lanes
QUICK_STORES = (4, 16, 32, 64, 128)
WARPS = (1, 4)


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
                    counts = sorted(
                        {
                            max(4, round(n / warps) * 512 // flavour.warp_store_bytes // 4 * 4)
                            for n in (QUICK_STORES if sweep.quick else STORES)
                        }
                    )
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


PROBE = Probe("layouts", "isolated bursts of every layout", schedules, effort=0.43, by_default=False)
