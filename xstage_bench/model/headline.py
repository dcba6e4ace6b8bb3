"""Which of a pair's many fitted numbers stands for it: one rule for reports, comparisons and limits."""

from __future__ import annotations

from xstage_bench.model.document import BurstGap, PairModel
from xstage_bench.model.estimate import Estimate


def headline_entry(pair: PairModel) -> BurstGap | None:
    """Return the entry that stands for a pair: the most producers, Q identified if it is for any W, W nearest to 4."""
    return max(pair.burst_gap, key=lambda e: (e.producers, e.capacity_bytes.value is not None, -abs(e.warps - 4), -e.warps), default=None)


def headline_rate(pair: PairModel) -> tuple[Estimate, int] | None:
    """Return R and its K at the most producers, by makespan, else sustained, else zero gap; None when none was identified."""
    for rates in sorted(pair.drain, key=lambda d: d.producers, reverse=True):
        for rate in (rates.makespan, rates.sustained, rates.zero_gap):
            if rate.value is not None:
                return rate, rates.producers
    return None
