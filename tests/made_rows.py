"""Rows of a samples table made by hand: bursts that follow max(T0, (V - Q)/R) on 132 SMs, for fits and verdicts of known truth."""

from typing import Any

import numpy as np
import pandas as pd

from xstage_bench.model.calibrate import calibrate
from xstage_bench.model.document import Model
from xstage_bench.schedule.bursts import Burst, Schedule

CLOCK = 2000.0
BASE, COST, RATE, CAPACITY = 80.0, 20.0, 400.0, 19_000.0  # cycles, cycles per warp-store, GB/s, bytes of one of 132 SMs
SIZES = (1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 36, 40, 48, 64, 96, 128, 192, 256, 384, 512)


def rows_of(
    schedule: Schedule, probe: str, issue_cycles: Any, start_ns: Any, *, process: int = 0, repetition: int = 0, clock: float = CLOCK
) -> pd.DataFrame:
    """What a run keeps of one execution."""
    count = len(schedule.bursts)
    free = [float(b.gap_cycles) if i and schedule.start == "free" else np.nan for i, b in enumerate(schedule.bursts)]
    timed = [float(b.start_ns) if schedule.start == "timed" else np.nan for b in schedule.bursts]
    return pd.DataFrame(
        {
            "schedule": schedule.key(), "probe": probe, "kind": "measure", "source": 0, "destination": 1, "flavour": "st.v4",
            "layout": "contiguous", "start": schedule.start, "producers": schedule.producer_count, "producer_set": schedule.producer_set,
            "warps": schedule.warps, "burst": np.arange(count), "bursts": count, "bytes": [b.bytes for b in schedule.bursts],
            "gap_cycles": free, "start_ns": timed, "process": process, "repetition": repetition, "issue_mean_cycles": issue_cycles,
            "issue_max_cycles": issue_cycles, "gap_mean_cycles": free, "start_mean_ns": start_ns, "sm_clock_mhz": clock, "status": "ok",
        }
    )  # fmt: skip


def sweep(repetitions: int = 3, costs: tuple[tuple[int, float], ...] = ((1, COST),)) -> pd.DataFrame:
    """Isolated bursts of so many warps, each with its cycles per warp-store, in three processes."""
    parts = []
    for warps, cost in costs:
        for n in SIZES:
            issue = max(BASE + cost * n, (n * warps * 512 - CAPACITY) * 132 / RATE * CLOCK / 1e3)
            one = Schedule((Burst(n * warps * 512),), 132, warps)
            parts += [rows_of(one, "isolated", [issue], [0.0], process=p, repetition=r) for p in range(3) for r in range(repetitions)]
    return pd.concat(parts, ignore_index=True)


def fit(samples: pd.DataFrame) -> Model:
    return calibrate(samples, backend="made", gpu="none", sm_clock_mhz=CLOCK, resamples=20)
