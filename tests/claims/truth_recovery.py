"""Do the intervals cover the truth? Make data with the fitted form, fit it, count; no GPU is needed.

    python tests/claims/truth_recovery.py [--replicas 1000]

One replica is a run of one (K, W), burst sizes x repetitions x processes, made from the closed forms with a known T0, R and Q: by the
simulator's preset burst-gap, and here with multiplicative noise per repetition, rare one-sided spikes, and a spread between processes.
Coverage of the 95 % intervals is expected in 93-97 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from xstage_bench.device.sim import BurstGapTruth, SimDevice
from xstage_bench.device.sim.burst_gap import NAME
from xstage_bench.model.burst_gap import isolated_issue_ns
from xstage_bench.model.calibrate import calibrate
from xstage_bench.schedule.bursts import Burst, Schedule
from xstage_bench.schedule.device import Execution

SM_CLOCK_MHZ = 1980.0
STORES = (1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 384, 512)
NUMBERS = ("t0_cycles", "drain_gb_per_s", "capacity_bytes")


@dataclass(frozen=True, slots=True)
class Truth:
    """What the data is made of."""

    producers: int = 132
    warps: int = 1
    base_cycles: float = 75.0
    cycles_per_store: float = 19.7
    drain_gb_per_s: float = 372.0
    capacity_bytes: float = 132 * 18_700.0
    repetition_spread: float = 0.01
    process_spread: float = 0.005
    spike_probability: float = 0.02
    processes: int = 3
    repetitions: int = 7


def make_samples(truth: Truth, rng: np.random.Generator, stores: tuple[int, ...] = STORES) -> pd.DataFrame:
    """Return isolated rows of one (K, W) made with the closed forms.

    Each process has its own issue cost, drain rate and capacity, spread by `process_spread`; each repetition its own factor.
    """
    shape = (truth.processes, truth.repetitions, len(stores))
    n = np.array(stores, dtype=np.float64)
    own = np.exp(truth.process_spread * rng.standard_normal((3, truth.processes, 1, 1)))
    t0 = (truth.base_cycles + truth.cycles_per_store * n) / SM_CLOCK_MHZ * 1e3 * own[0]
    volume = truth.producers * truth.warps * 512 * n
    clean = isolated_issue_ns(t0, volume, truth.drain_gb_per_s * own[1], truth.capacity_bytes * own[2]) * SM_CLOCK_MHZ / 1e3
    noise = truth.repetition_spread * rng.standard_normal(shape)
    spikes = (rng.random(shape) < truth.spike_probability) * rng.exponential(0.3, shape)
    cycles = (clean * np.exp(noise) * (1 + spikes)).ravel()
    process, repetition, size = (x.ravel() for x in np.indices(shape))
    same = {
        "probe": "isolated", "kind": "measure", "source": 0, "destination": 1, "flavour": "st.v4", "layout": "contiguous",
        "start": "isolated", "producers": truth.producers, "producer_set": "even", "warps": truth.warps, "burst": 0, "bursts": 1,
        "gap_cycles": np.nan, "start_ns": np.nan, "gap_mean_cycles": np.nan, "start_mean_ns": 0.0, "status": "ok",
    }  # fmt: skip
    rows = pd.DataFrame({"schedule": [f"{s:016x}" for s in size], "bytes": np.array(stores)[size] * truth.warps * 512})
    repetitions = process * truth.repetitions + repetition
    return rows.assign(**same, process=process, repetition=repetitions, issue_mean_cycles=cycles, issue_max_cycles=cycles)


def simulate_samples(seed: int, replica: int) -> pd.DataFrame:
    """Return isolated rows of one (K, W) measured on the simulator's preset ``burst-gap``, three processes of seven repetitions."""
    truth = BurstGapTruth()
    made = make_samples(Truth(), np.random.default_rng(0))
    for process in range(3):
        asked = [Execution(Schedule((Burst(n * 512),), 132, 1), repetition=r) for r in range(7) for n in STORES]
        traces = SimDevice(NAME, seed=replica + 100_000 * seed, process=process).measure(asked)
        issue = [t.issue_cycles[0] for t in traces]
        rows = made["process"] == process  # as many, in this order
        for column, of in (("issue_mean_cycles", np.mean), ("issue_max_cycles", np.max)):
            made.loc[rows, column] = [float(of(cycles)) for cycles in issue]
    return made.assign(sm_clock_mhz=truth.sm_clock_mhz)


def simulated_truth() -> dict[str, float]:
    """Return the true value of each of `NUMBERS` of `simulate_samples`."""
    truth = BurstGapTruth()
    t0 = float(truth.t0_cycles(1, np.array(64.0)))
    return {"t0_cycles": t0, "drain_gb_per_s": truth.drain_gb_per_s, "capacity_bytes": 132 * truth.capacity_bytes}


def truth_of(truth: Truth) -> dict[str, float]:
    """Return the true value of each of `NUMBERS`; T0 of the reference burst of 32 KiB per producer."""
    t0 = truth.base_cycles + truth.cycles_per_store * 32768 / (truth.warps * 512)
    return {"t0_cycles": t0, "drain_gb_per_s": truth.drain_gb_per_s, "capacity_bytes": truth.capacity_bytes}


def coverage(make: Callable[[int], pd.DataFrame], true: dict[str, float], replicas: int) -> dict[str, dict[str, Any]]:
    """Fit `replicas` runs; by number how many intervals hold the truth, and the means of bias and half width relative to it."""
    counts = {name: {"covered": 0, "bias": 0.0, "half_width": 0.0} for name in NUMBERS}
    for replica in range(replicas):
        model = calibrate(make(replica), backend="made", gpu="none", sm_clock_mhz=SM_CLOCK_MHZ, seed=replica)
        entry = model.pairs[0].burst_gap[0]
        for name, value in true.items():
            e = getattr(entry, name)
            if e.value is None or e.low is None or e.high is None:
                continue
            counts[name]["covered"] += e.low <= value <= e.high
            counts[name]["bias"] += (e.value / value - 1) / replicas
            counts[name]["half_width"] += (e.high - e.low) / 2 / value / replicas
    return counts


def made_by(truth: Truth, seed: int) -> Callable[[int], pd.DataFrame]:
    """Return the maker of replicas of `make_samples`."""
    return lambda replica: make_samples(truth, np.random.default_rng([seed, replica]))


def main() -> int:
    """Print the coverage on the simulator and for several spreads; exit 1 when one leaves 93-97 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    cases = {"simulator, preset burst-gap": (lambda replica: simulate_samples(options.seed, replica), simulated_truth())}
    for number, spread in enumerate((0.0, 0.002, 0.005, 0.02)):
        truth = Truth(process_spread=spread)
        cases[f"spread between processes {spread:.1%}"] = (made_by(truth, 10 * options.seed + number), truth_of(truth))
    good = True
    for title, (make, true) in cases.items():
        begin = time.perf_counter()
        found = coverage(make, true, options.replicas)
        print(f"{title}: {options.replicas} replicas in {time.perf_counter() - begin:.0f} s")
        for name, c in found.items():
            share = c["covered"] / options.replicas
            good &= 0.93 <= share <= 0.97
            print(f"  {name:15s} covered {share:6.1%}  bias {c['bias']:+7.3%}  half width {c['half_width']:6.2%}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
