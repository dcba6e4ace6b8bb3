"""The LOCAL control: the identical code and schedules with a destination in the source's own memory."""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule

from ._sizes import stores_for


def schedules(sweep: Sweep) -> list[Schedule]:
    """A part of the grid of isolated bursts; what it shows is the SM's, not the link's."""
    counts, warp_counts = ((8,), (4,)) if sweep.quick else ((1, 8, 32), (1, 4, 16))
    return [
        Schedule((Burst(n * warps * 512),), producers, warps, sweep.source, sweep.source)
        for producers in sweep.counts(counts)
        for warps in warp_counts
        for n in stores_for(warps, sweep.quick)
    ]


PROBE = Probe("local", "isolated bursts into local memory, the control", schedules)
