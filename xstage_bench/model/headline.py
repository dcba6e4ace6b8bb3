"""Which of a pair's many fitted numbers stands for it: one rule for reports, comparisons and limits."""

from __future__ import annotations

from typing import Any

from xstage_bench.model.document import BurstGap, Model, PairModel
from xstage_bench.model.estimate import Estimate


def headline_entry(pair: PairModel) -> BurstGap | None:
    """Return the entry that stands for a pair: the most producers, Q identified if it is for any W, W nearest to 4."""
    return max(pair.burst_gap, key=lambda e: (e.producers, e.capacity_bytes.value is not None, -abs(e.warps - 4), -e.warps), default=None)


def t0_bytes(entry: BurstGap) -> int:
    """Return the burst per producer at which T0 of an entry stands."""
    return entry.bytes if entry.t0_bytes is None else entry.t0_bytes


def t0_at(entry: BurstGap) -> str:
    """Say where T0 of an entry stands: SMs, warps and burst; and that it is extrapolated, as in files of earlier versions."""
    extrapolated = "" if entry.t0_bytes is not None else ", extrapolated"
    return f"K = {entry.producers}, W = {entry.warps}, {t0_bytes(entry) / 1e3:.4g} kB{extrapolated}"


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
                row = {
                    "pair": pair.pair,
                    "producers": entry.producers,
                    "warps": entry.warps,
                    "bytes": entry.bytes,
                    "t0_bytes": t0_bytes(entry),
                }
                numbers = {"t0_cycles": entry.t0_cycles, "drain_gb_per_s": entry.drain_gb_per_s, "capacity_bytes": entry.capacity_bytes}
                rows.append(row | {name: estimate.value for name, estimate in numbers.items()})
    return rows
