"""Random schedules that no fit may see: the model is judged on them."""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Schedule

from ._random import random_schedule

COUNT, QUICK_COUNT = 260, 60


def schedules(sweep: Sweep) -> list[Schedule]:
    """K from one to all SMs, 1 to 16 warps, 2 to 16 bursts of unequal size and gap, all three start rules."""
    return [random_schedule(sweep) for _ in range(QUICK_COUNT if sweep.quick else COUNT)]


PROBE = Probe("holdout", "random schedules held out of every fit", schedules, holdout=True, keep_producers=True, effort=0.72)
