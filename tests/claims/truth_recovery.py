"""Do the intervals cover the truth? Make data whose T0, R and Q are known, fit it like any run, count; no GPU is needed.

    python tests/claims/truth_recovery.py [--seeds 100] [--first 1000] [--replicas 1000]

First runs of the simulator's presets, quick and full: its noise, its processes, its rounded knee. The truth is that of a preset without
noise, by definition (`truth_of_preset`), not by the fit. Seeds 0 to 49 were looked at when the intervals were made, so the count
begins at 1000; expected are 90 to 99 of 100. Then data of exactly the fitted form, made here with noise per repetition, rare one-sided
spikes, and a spread between processes; expected are 93 to 98.5 %: the choice of sizes only widens.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from compare_false_alarms import fitted, measured

from probes._sizes import stores_for
from xstage_bench.device.sim import SimDevice
from xstage_bench.device.sim.burst_gap import NAME, course
from xstage_bench.device.sim.core import Conditions, run
from xstage_bench.device.sim.presets import PRESETS
from xstage_bench.measure.plan import QUICK_REPETITIONS, REPETITIONS
from xstage_bench.model.burst_gap import isolated_issue_ns
from xstage_bench.model.document import BurstGap
from xstage_bench.schedule.bursts import Burst, Schedule

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


@dataclass(frozen=True, slots=True)
class Known:
    """T0 by bytes per producer, R, Q and the burst per producer at which issue first stalls."""

    t0_cycles: Callable[[int], float]
    drain_gb_per_s: float
    capacity_bytes: float
    onset_bytes: float = np.inf

    def of(self, entry: BurstGap) -> dict[str, float]:
        """Return the truth of each of `NUMBERS`; T0 where the entry has it."""
        assert entry.t0_bytes is not None
        assert entry.t0_bytes < self.onset_bytes, "T0 stands at a burst that stalls"
        return dict(zip(NUMBERS, (self.t0_cycles(entry.t0_bytes), self.drain_gb_per_s, self.capacity_bytes), strict=True))


def truth_of_preset(preset: str, producers: int = 132, warps: int = 4) -> Known:
    """Return the numbers of a preset by their definitions, from its noiseless courses.

    - T0 of a burst: what it costs when nothing behind the port ever fills.
    - R: what the link drains in steady state, by the makespan: further bytes over further time from one long burst to one twice as long.
    - Q: bytes issued and not yet drained, V - R*T0, when issue first stalls. It stalls where the line through the first two bursts of a
      sweep in single warp-stores that take 1.3 T0 or more meets T0: a burst is a whole number of warp-stores, the onset is not.
    """
    stores = [*range(1, 129), 1 << 13, 1 << 14]
    schedules = [Schedule((Burst(n * warps * 512),), producers, warps) for n in stores]
    made = SimDevice(preset)
    ideal = [course(made.truth, s) for s in schedules] if made.truth else run(made.preset, schedules, Conditions())
    free, issue = np.array([i.free[0] for i in ideal]), np.array([i.issue().mean() for i in ideal])
    n, volume = np.array(stores, dtype=float), np.array(stores) * producers * warps * 512.0
    rate = (volume[-1] - volume[-2]) / (ideal[-1].issue().max() - ideal[-2].issue().max())  # bytes per cycle
    first = int(np.argmax(issue >= 1.3 * free))
    over = issue - free
    onset = n[first] - over[first] / (over[first + 1] - over[first])
    capacity = onset * producers * warps * 512 - rate * float(np.interp(onset, n, free))
    t0 = dict(zip((n * warps * 512).astype(int).tolist(), free.tolist(), strict=True))
    return Known(t0.__getitem__, rate * SM_CLOCK_MHZ / 1e3, capacity, onset * warps * 512)


def sizes_of(quick: bool) -> tuple[list[int], int]:
    """Return bytes per producer of the probe ``isolated`` for 4 warps, and repetitions in each process."""
    return [n * 4 * 512 for n in stores_for(4, quick)], -(-(QUICK_REPETITIONS if quick else REPETITIONS) // 3)


def runs_of(preset: str, quick: bool) -> Callable[[int], pd.DataFrame]:
    """Return what measures such a run of a seed."""
    sizes, repetitions = sizes_of(quick)
    return lambda seed: measured(seed, sizes, repetitions, preset)


def truth_of(truth: Truth) -> Known:
    """Return the numbers of `make_samples`."""
    per_byte = truth.cycles_per_store / (truth.warps * 512)
    return Known(lambda size: truth.base_cycles + per_byte * size, truth.drain_gb_per_s, truth.capacity_bytes)


def coverage(make: Callable[[int], pd.DataFrame], known: Known, replicas: Iterable[int]) -> dict[str, dict[str, Any]]:
    """Fit runs; by number the share of intervals that hold the truth, and the means of bias and half width relative to it."""
    counts = {name: {"covered": 0.0, "bias": 0.0, "half_width": 0.0} for name in NUMBERS}
    replicas = list(replicas)
    for replica in replicas:
        entry = fitted(make(replica), replica).pairs[0].burst_gap[0]
        for name, value in known.of(entry).items():
            e = getattr(entry, name)
            if e.value is None or e.low is None or e.high is None:
                continue
            counts[name]["covered"] += (e.low <= value <= e.high) / len(replicas)
            counts[name]["bias"] += (e.value / value - 1) / len(replicas)
            counts[name]["half_width"] += (e.high - e.low) / 2 / value / len(replicas)
    return counts


def made_by(truth: Truth, seed: int) -> Callable[[int], pd.DataFrame]:
    """Return the maker of replicas of `make_samples`."""
    return lambda replica: make_samples(truth, np.random.default_rng([seed, replica]))


def main() -> int:
    """Print the coverage on the simulator and for several spreads; exit 1 when one leaves what is expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--replicas", type=int, default=1000)
    options = parser.parse_args()
    seeds, replicas = range(options.first, options.first + options.seeds), range(options.replicas)
    cases = [
        (f"{preset}, {'quick' if quick else 'full'}", runs_of(preset, quick), truth_of_preset(preset), seeds, (0.90, 0.99))
        for preset in (*PRESETS, NAME)
        for quick in (True, False)
    ]
    for number, spread in enumerate((0.0, 0.002, 0.005, 0.02)):
        truth = Truth(process_spread=spread)
        cases.append((f"spread between processes {spread:.1%}", made_by(truth, number), truth_of(truth), replicas, (0.93, 0.985)))
    good = True
    for title, make, known, chosen, (least, most) in cases:
        begin = time.perf_counter()
        found = coverage(make, known, chosen)
        print(f"{title}: {len(chosen)} runs in {time.perf_counter() - begin:.0f} s")
        for name, c in found.items():
            good &= least - 1e-9 <= c["covered"] <= most + 1e-9
            print(f"  {name:15s} covered {c['covered']:6.1%}  bias {c['bias']:+7.3%}  half width {c['half_width']:6.2%}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
