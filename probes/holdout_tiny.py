"""Tiny bursts behind a full stage, that no fit may see: what a kernel's flags and short rows cost after its large stores."""

import numpy as np

from xstage_bench.measure.probe import Probe, Sweep
from xstage_bench.schedule.bursts import Burst, Schedule, StartRule

COUNT, QUICK_COUNT = 120, 30
LARGE = (64, 512)  # warp-stores per producer of the burst that fills the stage: 32 to 256 KB
TINY_STORES = 2  # warp-stores per warp, at most
LONGEST_GAP_CYCLES, LONGEST_PERIOD_NS = 100_000, 50_000


def _gaps(rng: np.random.Generator, longest: int, count: int) -> list[int]:
    """Log-uniform from nothing to the longest."""
    return [int(g) for g in np.expm1(rng.uniform(0.0, np.log1p(longest), count))]


def _schedule(sweep: Sweep, start: StartRule) -> Schedule:
    rng = sweep.rng
    producers, warps, count = int(rng.integers(1, sweep.sm_count + 1)), int(rng.integers(1, 17)), int(rng.integers(3, 9))
    large = max(int(np.exp(rng.uniform(*np.log(LARGE)))) // warps, TINY_STORES + 1)
    stores = [large, *(int(n) for n in rng.integers(1, TINY_STORES + 1, count))]
    gaps = [0, *_gaps(rng, LONGEST_GAP_CYCLES, count)] if start == "free" else [0] * (count + 1)
    starts = np.cumsum([0, *_gaps(rng, LONGEST_PERIOD_NS, count)]) if start == "timed" else np.zeros(count + 1)
    bursts = tuple(Burst(n * warps * 512, gap, int(at)) for n, gap, at in zip(stores, gaps, starts, strict=True))
    return Schedule(bursts, producers, warps, sweep.source, sweep.destination, start)


def schedules(sweep: Sweep) -> list[Schedule]:
    """A large burst, then three to eight of one or two warp-stores a warp; K from one to all SMs, 1 to 16 warps, free and timed alike."""
    rules: tuple[StartRule, StartRule] = ("free", "timed")
    return [_schedule(sweep, rules[i % 2]) for i in range(QUICK_COUNT if sweep.quick else COUNT)]


PROBE = Probe("holdout_tiny", "tiny bursts behind a full stage, held out of every fit", schedules, holdout=True, effort=0.29)
