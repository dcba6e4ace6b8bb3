"""R of K producers by every statistic measured, and the large-gap plateau of periodic bursts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from xstage_bench.model.arrays import FloatArray, IntArray
from xstage_bench.model.cells import by_repetition, grid
from xstage_bench.model.document import DrainRate, Plateau
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.resample import Resampled, estimate, resample_medians

if TYPE_CHECKING:
    import pandas as pd

#: A zero-gap periodic burst counts as saturated when it takes this many times its free issue time.
_SATURATED = 1.5


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """R by SM count, by each statistic; see `document.DrainRate`."""

    makespan: dict[int, Resampled]
    sustained: dict[int, Resampled]
    zero_gap: dict[int, Resampled]
    mean_slope: dict[int, Resampled]

    def producers(self) -> list[int]:
        """Return the SM counts for which any statistic gives R."""
        return sorted({*self.makespan, *self.sustained, *self.zero_gap, *self.mean_slope})

    def best(self, producers: int) -> tuple[Resampled, str] | None:
        """R of an SM count and its statistic: makespan, else sustained, else zero gap, the ones least biased by unequal service first."""
        for name in ("makespan", "sustained", "zero_gap"):
            found: dict[int, Resampled] = getattr(self, name)
            if producers in found:
                return found[producers], "issue_max" if name == "makespan" else name
        return None

    def documents(self) -> list[DrainRate]:
        """Return one `DrainRate` per SM count."""
        why = {
            "makespan": "no sweep of this SM count has enough sizes past its knee",
            "sustained": "not measured",
            "zero_gap": "no zero-gap periodic burst saturates",
            "mean_slope": "no sweep of this SM count saturates",
        }

        def of(name: str, producers: int) -> Estimate:
            found: dict[int, Resampled] = getattr(self, name)
            statistic = {"makespan": "issue_max", "mean_slope": "issue_mean"}.get(name, name)
            return estimate(found[producers], statistic=statistic) if producers in found else Estimate.missing(why[name], statistic)

        return [
            DrainRate(
                producers=k,
                makespan=of("makespan", k),
                sustained=of("sustained", k),
                zero_gap=of("zero_gap", k),
                mean_slope=of("mean_slope", k),
            )
            for k in self.producers()
        ]


def pool(parts: list[Resampled]) -> Resampled | None:
    """Mean of several estimates of one number; None when there is none."""
    if not parts:
        return None
    return Resampled(
        float(np.mean([p.value for p in parts])),
        np.mean([p.draws for p in parts], axis=0),
        np.mean([p.per_process for p in parts], axis=0),
        min(p.repetitions for p in parts),
        float(np.mean([p.choice for p in parts])),
    )


def sustained_rates(
    rows: pd.DataFrame,
    capacity_bytes: Mapping[tuple[int, int], float],
    sm_clock_mhz: float,
    processes: IntArray,
    resamples: int,
    seed: list[int],
) -> dict[int, Resampled]:
    """R of each K from its longest sustained burst: (V - Q) over the issue time of the slowest producer, the largest over W.

    `capacity_bytes` maps (K, W) to Q; where it is unknown V is used, which overstates R by Q/V.
    """
    chosen = rows[(rows["probe"] == "sustained") & (rows["start"] == "isolated") & (rows["burst"] == 0) & (rows["bytes"] > 0)]
    best: dict[int, Resampled] = {}
    for producers, warps in grid(chosen):
        part = chosen[(chosen["producers"] == producers) & (chosen["warps"] == warps)]
        longest = part[part["bytes"] == part["bytes"].max()]
        size, (cycles,) = by_repetition(longest, longest["bytes"].to_numpy(dtype=np.int64), ("issue_max_cycles",), processes)
        drained = producers * float(size[0]) - capacity_bytes.get((producers, warps), 0.0)
        rate = _resampled(drained * sm_clock_mhz / 1e3 / cycles, resamples, [*seed, 1, producers, warps])
        if producers not in best or rate.value > best[producers].value:
            best[producers] = rate
    return best


def zero_gap_rates(
    steady_rows: pd.DataFrame,
    free_cycles: Mapping[tuple[int, int], tuple[float, float]],
    processes: IntArray,
    resamples: int,
    seed: list[int],
) -> dict[int, Resampled]:
    """R of each K from the steady period of zero-gap bursts, V / period: the mean over the K/B splits that saturate.

    `free_cycles` maps (K, W) to base and cycles per byte of T0.
    """
    chosen = steady_rows[steady_rows["asked_gap_cycles"] == 0]
    rates: dict[int, list[Resampled]] = {}
    for producers, warps, size, part in _splits(chosen):
        base, per_byte = free_cycles.get((producers, warps), (0.0, 0.0))
        if part["issue_cycles"].median() < _SATURATED * (base + per_byte * size):
            continue
        _, (period,) = by_repetition(part, np.zeros(len(part), dtype=np.int64), ("period_ns",), processes)
        rates.setdefault(producers, []).append(_resampled(producers * size / period, resamples, [*seed, 2, producers, warps, size]))
    pooled = {producers: pool(parts) for producers, parts in rates.items()}
    return {producers: rate for producers, rate in pooled.items() if rate is not None}


def plateaus(
    steady_rows: pd.DataFrame,
    drain_gb_per_s: Mapping[int, float],
    sm_clock_mhz: float,
    processes: IntArray,
    resamples: int,
    seed: list[int],
) -> list[Plateau]:
    """Steady issue time at the largest gap of each (K, W, bytes); not identified where that gap is shorter than V/R."""
    out = []
    for producers, warps, size, part in _splits(steady_rows):
        gap = int(part["asked_gap_cycles"].max())
        rate = drain_gb_per_s.get(producers)
        needed = None if rate is None else producers * size / rate * sm_clock_mhz / 1e3
        if needed is not None and gap < needed:
            issue = Estimate.missing(f"the largest gap, {gap} cycles, is shorter than V/R, {needed:.0f} cycles", "periodic")
        else:
            longest = part[part["asked_gap_cycles"] == gap]
            _, (cycles,) = by_repetition(longest, np.zeros(len(longest), dtype=np.int64), ("issue_cycles",), processes)
            issue = estimate(_resampled(cycles, resamples, [*seed, 3, producers, warps, size]), statistic="periodic")
        out.append(Plateau(producers=producers, warps=warps, bytes=size, gap_cycles=gap, issue_cycles=issue))
    return out


def _resampled(values: FloatArray, resamples: int, seed: list[int]) -> Resampled:
    """One number from values of shape (processes, repetitions, 1)."""
    centre, draws, apart = resample_medians(values, resamples, np.random.default_rng(seed))
    return Resampled(float(centre[0]), draws[:, 0], apart[:, 0], values.shape[1])


def _splits(rows: pd.DataFrame) -> Iterator[tuple[int, int, int, pd.DataFrame]]:
    axes = rows[["producers", "warps", "bytes"]].to_numpy(dtype=np.int64)
    for split in np.unique(axes, axis=0):
        yield int(split[0]), int(split[1]), int(split[2]), rows[(axes == split).all(axis=1)]
