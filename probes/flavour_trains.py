"""Free-running periodic bursts of every flavour: how a backlog that is carried from burst to burst costs.

Asked for by name (``--only flavour_trains``).
"""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule

from ._flavours import rows, sizes

BURSTS = 6
BYTES = (8192, 32768)
GAPS_CYCLES = (0, 3000, 12000)
PRODUCERS = (48,)
WARPS = 4


def schedules(sweep: Sweep) -> list[Schedule]:
    """Equal bursts at equal gaps by all SMs and by 48."""
    return [
        Schedule((Burst(size, gap),) * BURSTS, producers, WARPS, sweep.source, sweep.destination, "free", flavour=flavour.name)
        for flavour in rows()
        for producers in sweep.counts(PRODUCERS)
        for size in sizes(flavour, WARPS, BYTES)
        for gap in ((0, 12000) if sweep.quick else GAPS_CYCLES)
    ]


PROBE = Probe("flavour_trains", "periodic bursts of every flavour", schedules, effort=0.15, by_default=False)
