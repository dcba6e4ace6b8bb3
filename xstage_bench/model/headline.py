"""Which of a pair's many fitted numbers stands for it: one rule for reports, comparisons and limits."""

from __future__ import annotations

from typing import Any

from xstage_bench.model.document import BurstGap, Model, PairModel
from xstage_bench.model.estimate import Estimate


def headline_entry(pair: PairModel) -> BurstGap | None:
    """Return the entry that stands for a pair: the most producers, Q identified if it is for any W, W nearest to 4."""
    return max(pair.burst_gap, key=lambda e: (e.producers, e.capacity_bytes.value is not None, -abs(e.warps - 4), -e.warps), default=None)


def free_entry(pair: PairModel) -> BurstGap | None:
    """Return the entry whose T0 is best determined: the most producers, and of these the fewest warps.

    With more warps two or three sizes lie below the knee, and T0 at the reference burst is extrapolated from them: in runs of the same
    2 x H200 it differed by 1.7 to 3.8 % at W = 4, and by less than 0.01 % at W = 1 (docs/method.md).
    """
    return max(pair.burst_gap, key=lambda e: (e.producers, e.t0_cycles.value is not None, -e.warps), default=None)


def headline_rate(pair: PairModel) -> tuple[Estimate, int] | None:
    """Return R and its K at the most producers, by makespan, else sustained, else zero gap; None when none was identified."""
    for rates in sorted(pair.drain, key=lambda d: d.producers, reverse=True):
        for rate in (rates.makespan, rates.sustained, rates.zero_gap):
            if rate.value is not None:
                return rate, rates.producers
    return None


def headline_rows(model: Model) -> list[dict[str, Any]]:
    """Return the three numbers of each pair with all its producers, one row for each warp count that was fitted."""
    rows = []
    for pair in model.pairs:
        most = max((entry.producers for entry in pair.burst_gap), default=0)
        for entry in pair.burst_gap:
            if entry.producers == most:
                row = {"pair": pair.pair, "producers": entry.producers, "warps": entry.warps, "bytes": entry.bytes}
                numbers = {"t0_cycles": entry.t0_cycles, "drain_gb_per_s": entry.drain_gb_per_s, "capacity_bytes": entry.capacity_bytes}
                rows.append(row | {name: estimate.value for name, estimate in numbers.items()})
    return rows
