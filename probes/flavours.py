"""Isolated bursts of every flavour: what a store of 4 to 16 bytes, a reduction or a bulk copy costs, drains at and holds.

Asked for by name (``--only flavours``): a profile stays within a minute without it.
"""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule

from ._flavours import rows, sizes, warp_counts

BURST_BYTES = (512, 1024, 2048, 4096, 6144, 8192, 12288, 16384, 20480, 24576, 28672, 32768, 49152, 65536, 98304, 131072, 262144)
COARSE_BYTES = (2048, 8192, 16384, 24576, 32768, 65536, 131072, 262144)
BULK_OPERATIONS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
COARSE_OPERATIONS = (2, 4, 8, 16)


def schedules(sweep: Sweep) -> list[Schedule]:
    """All SMs with four and one warps finely, with two and eight, and 32, 8 and 1 SMs coarsely; the local control with all."""
    every, to = sweep.sm_count, sweep.destination
    out = []
    for flavour in rows():
        cases = [(every, 4, to)]
        if not sweep.quick:
            cases += [(every, 1, to), *((every, w, to) for w in warp_counts(flavour, (2, 8)))]
            cases += [(k, w, to) for k in (1, 8, 32) if k < every for w in (1, 4)]
            cases.append((every, 4, sweep.source))
        for producers, warps, destination in cases:
            fine = not sweep.quick and producers == every and warps in (1, 4) and destination == to
            wanted = (BURST_BYTES, BULK_OPERATIONS) if fine else (COARSE_BYTES, COARSE_OPERATIONS)
            out += [
                Schedule((Burst(size),), producers, warps, sweep.source, destination, flavour=flavour.name)
                for size in sizes(flavour, warps, *wanted)
            ]
    return out


PROBE = Probe("flavours", "isolated bursts of every store flavour", schedules, effort=0.29, by_default=False)
