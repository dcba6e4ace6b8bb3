"""Random schedules of every kind that one pair can execute."""

from typing import get_args

import numpy as np

from xstage_bench.measure.probe import Sweep
from xstage_bench.schedule.bursts import Burst, Schedule, StartRule

MAX_WARP_STORES = 512  # per producer and burst, 256 KB


def _log_uniform(rng: np.random.Generator, low: float, high: float, size: int) -> np.ndarray:
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def random_schedule(sweep: Sweep) -> Schedule:
    """K from one to all SMs, 1 to 16 warps, 2 to 16 bursts of unequal size and gap, one of the three start rules."""
    rng = sweep.rng
    start: StartRule = get_args(StartRule)[rng.integers(3)]
    producers, warps, count = int(rng.integers(1, sweep.sm_count + 1)), int(rng.integers(1, 17)), int(rng.integers(2, 17))
    stores = np.maximum(_log_uniform(rng, 1, MAX_WARP_STORES, count).astype(int) // warps, 1)
    gaps = np.where(rng.random(count) < 0.15, 0, _log_uniform(rng, 100, 100_000, count)).astype(int)
    starts = np.concatenate(([0], np.cumsum(_log_uniform(rng, 300, 50_000, count - 1)))).astype(int)
    bursts = tuple(
        Burst(int(n) * warps * 512, int(gap) if start == "free" else 0, int(at) if start == "timed" else 0)
        for n, gap, at in zip(stores, gaps, starts, strict=True)
    )
    return Schedule(bursts, producers, warps, sweep.source, sweep.destination, start)
