"""Empty bursts: what the instrument itself costs, and what a fence costs when nothing is outstanding."""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule


def schedules(sweep: Sweep) -> list[Schedule]:
    """Zero bytes, so that issue time is the cost of the clock reads and drain time is that of an empty system-scope fence."""
    return [
        Schedule((Burst(0),), producers, warps, sweep.source, sweep.destination) for producers in sweep.counts((1,)) for warps in (1, 4, 16)
    ]


PROBE = Probe("timer", "clock reads, empty bursts and empty fences", schedules)
