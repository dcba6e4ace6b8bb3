"""Periodic bursts with a gap of SM cycles: R at gap zero (several K and B of one V), T0 on the plateau, the recovery gap between them."""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule

BURSTS = 16
PRODUCERS = (8, 16, 32, 64)
GAPS_CYCLES = (0, 500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128000)
STORES = {1: (8, 16, 32, 64, 128), 4: (8, 16, 32, 64)}
QUICK_GAPS_CYCLES = (0, 2000, 8000, 32000, 128000)
QUICK_STORES = {4: (8, 16, 32)}


def schedules(sweep: Sweep) -> list[Schedule]:
    """Equal bursts at equal gaps; producers are aligned once, at the first burst, and run free after it."""
    counts = (16,) if sweep.quick else PRODUCERS
    gaps = QUICK_GAPS_CYCLES if sweep.quick else GAPS_CYCLES
    return [
        Schedule((Burst(n * warps * 512, gap),) * BURSTS, producers, warps, sweep.source, sweep.destination, "free")
        for producers in sweep.counts(counts)
        for warps, sizes in (QUICK_STORES if sweep.quick else STORES).items()
        for n in sizes
        for gap in gaps
    ]


PROBE = Probe("periodic", "periodic bursts: issue time and period against gap", schedules, effort=0.43)
