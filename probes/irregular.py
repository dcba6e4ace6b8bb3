"""Random schedules like the held-out ones, but others: no parameter is fitted to them, the width of the prediction intervals is."""

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Schedule

from ._random import random_schedule

COUNT, QUICK_COUNT = 160, 60


def schedules(sweep: Sweep) -> list[Schedule]:
    """As the probe ``holdout``, drawn anew."""
    return [random_schedule(sweep) for _ in range(QUICK_COUNT if sweep.quick else COUNT)]


PROBE = Probe("irregular", "random schedules for the width of prediction intervals", schedules, effort=0.29)
