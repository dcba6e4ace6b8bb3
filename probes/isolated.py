"""Isolated bursts on a drained stage: issue time against size. The plateau gives T0, the knee Q, the slope of the slowest producer R."""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule

from ._sizes import stores_for

PRODUCERS = (1, 8, 12, 16, 24, 32, 48, 64, 96)  # and all SMs
WARPS = (1, 2, 4, 8, 16)


def schedules(sweep: Sweep) -> list[Schedule]:
    """The grid of producer counts, warps and sizes that docs/burst-gap.md is judged on."""
    counts, warp_counts = ((1, 8, 32), (1, 4)) if sweep.quick else (PRODUCERS, WARPS)
    return [
        Schedule((Burst(n * warps * 512),), producers, warps, sweep.source, sweep.destination)
        for producers in sweep.counts(counts)
        for warps in warp_counts
        for n in stores_for(warps, sweep.quick)
    ]


def exemplars(sweep: Sweep) -> list[Schedule]:
    """All SMs with 4 warps, well before the onset and well after it."""
    return [Schedule((Burst(n * 4 * 512),), sweep.sm_count, 4, sweep.source, sweep.destination) for n in (8, 32)]


PROBE = Probe("isolated", "isolated bursts: issue time against size", schedules, keep_producers=True, exemplars=exemplars)
