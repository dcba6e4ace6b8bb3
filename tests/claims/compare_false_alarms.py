"""How often does `xstage compare` call a simulated node better or worse than itself, and what does it notice? No GPU is needed.

    python tests/claims/compare_false_alarms.py [--pairs 400]

One A/A pair is two independent runs of the same simulated node (preset h200-nv18-x2, whose processes differ in link rate and capacity),
each in 3 processes: all SMs, 4 warps, 14 burst sizes, 7 repetitions, fitted like any run. The claim: at most 1 % of pairs are called
better or worse in any of T0, R and Q. Beside it, what the rule without the spread between runs would do, and how often links of 0.97 to
0.85 of their rate are noticed.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from xstage_bench.device.sim import SimDevice
from xstage_bench.device.sim.faults import Faults
from xstage_bench.judge import compare
from xstage_bench.model.calibrate import calibrate
from xstage_bench.model.document import Model
from xstage_bench.record.columns import SAMPLES
from xstage_bench.record.rows import Recorded, sample_columns
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution

SIZES = tuple(2048 * n for n in (1, 2, 4, 6, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128))
REPETITIONS, PROCESSES = 7, 3


def measured(
    seed: int, sizes: Sequence[int] = SIZES, repetitions: int = REPETITIONS, preset: str = "h200-nv18-x2", faults: Faults | None = None
) -> pd.DataFrame:
    """Measure isolated bursts of all SMs, 4 warps each, on the simulator: sample rows of three processes in order of execution."""
    frames = []
    for process in range(PROCESSES):
        device = SimDevice(preset, seed=seed, process=process, faults=faults)
        schedules = [Schedule((Burst(size),), 132, 4) for size in sizes]
        jobs = [Execution(s, repetition=process * repetitions + r) for s in schedules for r in range(repetitions)]
        recorded = [Recorded("isolated", process, i, e, t, False) for i, (e, t) in enumerate(zip(jobs, device.measure(jobs), strict=True))]
        columns = sample_columns(recorded)
        frames.append(pd.DataFrame({c.name: columns[c.name] for c in SAMPLES}))
    return pd.concat(frames, ignore_index=True)


def fitted(samples: pd.DataFrame, seed: int) -> Model:
    """Fit such rows like those of any run."""
    return calibrate(samples, backend="sim:h200-nv18-x2", gpu="simulated", sm_clock_mhz=1980.0, seed=seed, resamples=40)


def one_run(seed: int, rate: float = 1.0) -> Model:
    """Measure and fit one simulated run whose link drains at `rate` of its normal speed."""
    return fitted(measured(seed, faults=Faults(slow={(0, 1): rate})), seed)


def verdicts(a: Model, b: Model) -> list[compare.Difference]:
    """Compare two models as the verb does."""
    return compare.compare(compare.Side("A", a, None), compare.Side("B", b, None)).differences


def count(models: list[tuple[Model, Model]]) -> tuple[int, int, int]:
    """Pairs that were called better or worse, pairs with a worse drain rate, and pairs that are the same throughout."""
    alarms = worse = same = 0
    for a, b in models:
        found = verdicts(a, b)
        alarms += any(d.verdict in ("better", "worse") for d in found)
        worse += any(d.verdict == "worse" and d.parameter == "drain_gb_per_s" for d in found)
        same += all(d.verdict == "same" for d in found)
    return alarms, worse, same


def main() -> int:
    """Print the rates; exit 1 when more than 1 % of the A/A pairs raise an alarm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--slow-pairs", type=int, default=25)
    options = parser.parse_args()
    begin = time.perf_counter()
    pairs = [(one_run(2 * i + 1), one_run(2 * i + 2)) for i in range(options.pairs)]
    alarms, _, same = count(pairs)
    share = alarms / options.pairs
    print(f"A/A: {alarms} of {options.pairs} pairs called better or worse ({share:.2%}), {same} the same throughout", flush=True)
    for p in compare.PARAMETERS:
        of = [next(d for d in verdicts(a, b) if d.parameter == p.name) for a, b in pairs]
        changes = np.array([d.change for d in of if d.change is not None])
        half = np.median([(d.high - d.low) / 2 for d in of if d.low is not None and d.high is not None])
        print(f"  {p.name:15s} differences have a standard deviation of {changes.std():.3%}, median half interval {half:.2%}")
    shipped, compare.BETWEEN_RUNS = compare.BETWEEN_RUNS, 0.0
    print(f"  without the spread between runs: {count(pairs)[0]} of {options.pairs}")
    compare.BETWEEN_RUNS = shipped
    for rate in (0.97, 0.95, 0.9, 0.85):
        slow = [(pairs[i % len(pairs)][0], one_run(10_000 + i, rate)) for i in range(options.slow_pairs)]
        _, worse, same = count(slow)
        print(f"a link at {rate:.2f} of its rate: R worse in {worse} of {len(slow)}, the same throughout in {same}", flush=True)
    print(f"{time.perf_counter() - begin:.0f} s")
    return 0 if share <= compare.FALSE_ALARMS else 1


if __name__ == "__main__":
    sys.exit(main())
