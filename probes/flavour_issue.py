"""One SM alone, few operations: what each flavour costs to issue when nothing behind the SM ever fills, for every way its loop can end.

Asked for by name (``--only flavour_issue``). It repeats to the cycle, so once in each process is enough.
"""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule

from ._flavours import rows, warp_counts

WARPS = (1, 2, 4, 8)
OPERATIONS = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32)
MOST_BYTES = 262144


def schedules(sweep: Sweep) -> list[Schedule]:
    """Isolated bursts of one SM; `OPERATIONS` of each warp."""
    return [
        Schedule((Burst(size),), 1, warps, sweep.source, sweep.destination, flavour=flavour.name)
        for flavour in rows()
        for warps in warp_counts(flavour, (1, 4) if sweep.quick else WARPS)
        for n in OPERATIONS
        if (size := n * warps * flavour.warp_store_bytes) <= MOST_BYTES
    ]


PROBE = Probe("flavour_issue", "one SM alone: the issue cost of every flavour", schedules, effort=0.15, by_default=False)
