"""One long burst per SM count: the drain rate by makespan, remote and local."""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule

PRODUCERS = (1, 2, 4, 8, 16, 32, 64)


def schedules(sweep: Sweep) -> list[Schedule]:
    """2 MB per producer (512 KB when quick), which outlasts any capacity; 4 and 8 warps keep an SM's port busy."""
    size = (512 if sweep.quick else 2048) * 1024
    return [
        Schedule((Burst(size),), producers, warps, sweep.source, destination)
        for destination in (sweep.destination, sweep.source)
        for producers in sweep.counts((1, 8, 32) if sweep.quick else PRODUCERS)
        for warps in ((4,) if sweep.quick else (4, 8))
    ]


PROBE = Probe("sustained", "sustained drain rate against SM count", schedules, effort=0.5)
