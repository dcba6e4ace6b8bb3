"""Do the intervals cover the truth? Make data with the fitted form, fit it, count; no GPU is needed.

    python bench/truth_recovery.py [--replicas 1000]

One replica is a run of one (K, W): burst sizes x repetitions x processes, made from the closed forms with a known T0, R and Q, with
multiplicative noise per repetition, rare one-sided spikes, and a spread between processes. Coverage of the 95 % intervals is expected in 93-97 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from xstage_bench.model.burst_gap import isolated_issue_ns
from xstage_bench.model.calibrate import calibrate

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
    byte_count = np.array(stores)[size] * truth.warps * 512
    return pd.DataFrame(
        {
            "schedule": [f"{s:016x}" for s in size],
            "probe": "isolated",
            "kind": "measure",
            "source": 0,
            "destination": 1,
            "flavour": "st.v4",
            "layout": "contiguous",
            "start": "isolated",
            "producers": truth.producers,
            "producer_set": "even",
            "warps": truth.warps,
            "burst": 0,
            "bursts": 1,
            "bytes": byte_count,
            "gap_cycles": np.nan,
            "start_ns": np.nan,
            "process": process,
            "repetition": process * truth.repetitions + repetition,
            "issue_mean_cycles": cycles,
            "issue_max_cycles": cycles,
            "gap_mean_cycles": np.nan,
            "start_mean_ns": 0.0,
            "status": "ok",
        }
    )


def truth_of(truth: Truth, reference_bytes: int) -> dict[str, float]:
    """Return the true value of each of `NUMBERS`."""
    stores = reference_bytes / (truth.warps * 512)
    t0 = truth.base_cycles + truth.cycles_per_store * stores
    return {"t0_cycles": t0, "drain_gb_per_s": truth.drain_gb_per_s, "capacity_bytes": truth.capacity_bytes}


def coverage(truth: Truth, replicas: int, seed: int = 0, resamples: int = 200) -> dict[str, dict[str, Any]]:
    """Fit `replicas` runs and count how many intervals hold the truth.

    Returns
    -------
    dict
        By number: `covered` (count), `bias` and `half_width` (means, relative to the truth).
    """
    counts = {name: {"covered": 0, "bias": 0.0, "half_width": 0.0} for name in NUMBERS}
    for replica in range(replicas):
        samples = make_samples(truth, np.random.default_rng([seed, replica]))
        model = calibrate(samples, backend="made", gpu="none", sm_clock_mhz=SM_CLOCK_MHZ, seed=replica, resamples=resamples)
        entry = model.pairs[0].burst_gap[0]
        for name, true in truth_of(truth, entry.bytes).items():
            e = getattr(entry, name)
            if e.value is None or e.low is None or e.high is None:
                continue
            counts[name]["covered"] += e.low <= true <= e.high
            counts[name]["bias"] += (e.value / true - 1) / replicas
            counts[name]["half_width"] += (e.high - e.low) / 2 / true / replicas
    return counts


def main() -> int:
    """Print the coverage for several spreads; exit 1 when one leaves 93-97 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    good = True
    for number, process_spread in enumerate((0.0, 0.002, 0.005, 0.02)):
        begin = time.perf_counter()
        found = coverage(Truth(process_spread=process_spread), options.replicas, 10 * options.seed + number)
        for name, c in found.items():
            share = c["covered"] / options.replicas
            good &= 0.93 <= share <= 0.97
            print(
                f"process spread {process_spread:5.3f}  {name:15s} covered {share:6.1%}  bias {c['bias']:+7.3%}  half width {c['half_width']:6.2%}",
                flush=True,
            )
        print(f"  {options.replicas} replicas in {time.perf_counter() - begin:.0f} s", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
