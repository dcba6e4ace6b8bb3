"""Random schedules of every flavour that no fit may see: its node model is judged on them.

Asked for by name (``--only flavour_holdout``).
"""

from typing import get_args

import numpy as np

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule, StartRule
from xstage_bench.schedule.flavour import Flavour

from ._flavours import MAX_OPERATIONS, rows, warp_counts

COUNT, QUICK_COUNT = 24, 6
WARPS = (1, 2, 4, 8)
MOST_BYTES = 262144  # per producer and burst
BURSTS = (2, 6)


def _log_uniform(rng: np.random.Generator, low: float, high: float, size: int) -> np.ndarray:
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def _schedule(sweep: Sweep, flavour: Flavour, start: StartRule) -> Schedule:
    rng = sweep.rng
    producers, warps = int(rng.integers(1, sweep.sm_count + 1)), int(rng.choice(warp_counts(flavour, WARPS)))
    count = int(rng.integers(BURSTS[0], BURSTS[1] + 1))
    unit = warps * flavour.warp_store_bytes
    most = min(MOST_BYTES, MAX_OPERATIONS * flavour.warp_store_bytes) // unit
    operations = np.maximum(_log_uniform(rng, 1, most + 1, count).astype(int), 1)
    gaps = np.where(rng.random(count) < 0.15, 0, _log_uniform(rng, 100, 100_000, count)).astype(int)
    starts = np.concatenate(([0], np.cumsum(_log_uniform(rng, 300, 50_000, count - 1)))).astype(int)
    bursts = tuple(
        Burst(int(n) * unit, int(gap) if start == "free" else 0, int(at) if start == "timed" else 0)
        for n, gap, at in zip(operations, gaps, starts, strict=True)
    )
    return Schedule(bursts, producers, warps, sweep.source, sweep.destination, start, flavour=flavour.name)


def schedules(sweep: Sweep) -> list[Schedule]:
    """K from one to all SMs, 1 to 8 warps, 2 to 6 bursts of unequal size and gap, all three start rules alike."""
    rules = get_args(StartRule)
    return [_schedule(sweep, flavour, rules[i % len(rules)]) for flavour in rows() for i in range(QUICK_COUNT if sweep.quick else COUNT)]


PROBE = Probe(
    "flavour_holdout", "random schedules of every flavour held out of every fit", schedules, holdout=True, effort=0.29, by_default=False
)
