"""Isolated bursts of every flavour: what a store of 4 to 16 bytes, a reduction or a bulk copy costs, drains at and holds.

Asked for by name (``--only flavours``): a profile stays within a minute without it.
"""

from xstage_bench.flavour import FLAVOURS, Flavour
from xstage_bench.probe import Probe, Sweep
from xstage_bench.schedule import Burst, Schedule

WARPS = (1, 4)
BURST_BYTES = (512, 1024, 2048, 4096, 6144, 8192, 12288, 16384, 20480, 24576, 28672, 32768, 49152, 65536, 98304, 131072, 262144)
COARSE_BYTES = (2048, 8192, 16384, 24576, 32768, 65536, 131072, 262144)
BULK_OPERATIONS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
MAX_OPERATIONS = 2048  # per producer and burst


def sizes(flavour: Flavour, warps: int, coarse: bool) -> list[int]:
    """Bytes per producer: whole groups of operations, of the same sizes for all flavours as far as these divide them."""
    unit = warps * flavour.warp_store_bytes
    step = unit * flavour.group if flavour.warp_store_bytes < 512 else unit
    wanted = COARSE_BYTES if coarse else BURST_BYTES
    found = {max(1, round(size / step)) * step for size in wanted}
    if flavour.bulk:
        found |= {unit * n for n in BULK_OPERATIONS}
    return sorted(s for s in found if s // flavour.warp_store_bytes <= MAX_OPERATIONS and s <= 8 * max(wanted))


def schedules(sweep: Sweep) -> list[Schedule]:
    """One, eight and all SMs with one and four warps; the local control with all; no aliases of another flavour's machine code."""
    every = sweep.sm_count
    out = []
    for flavour in FLAVOURS.values():
        if flavour.alias_of is not None:
            continue
        cases = [(every, 4, sweep.destination)]
        if not sweep.quick:
            cases += [(k, w, sweep.destination) for k in (1, 8, every) for w in WARPS if (k, w) != (every, 4)]
            cases.append((every, 4, sweep.source))
        for producers, warps, destination in cases:
            out += [
                Schedule((Burst(size),), producers, warps, sweep.source, destination, flavour=flavour.name)
                for size in sizes(flavour, warps, sweep.quick or producers != every or destination == sweep.source)
            ]
    return out


PROBE = Probe("flavours", "isolated bursts of every store flavour", schedules, effort=0.43, by_default=False)
