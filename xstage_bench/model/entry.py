"""From the fit of one (K, W) to its entry in `model.json`: what is identified, by which statistic, and why not where it is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from xstage_bench.model.cell_fit import CellFit
from xstage_bench.model.document import BurstGap, Plateau, Recipe
from xstage_bench.model.drain import Rates
from xstage_bench.model.estimate import Estimate
from xstage_bench.model.knee import BASE, EXCESS, FREE, KNEE, NAMES
from xstage_bench.model.resample import Resampled, combine, estimate
from xstage_bench.schedule.bursts import WARP_STORE_BYTES

#: The paper's reference burst per producer.
REFERENCE_BYTES = 32 * 1024
#: R of other warps is not taken over when bursts without a stall were issued faster than this much of it.
_NOT_CONTRADICTED = 1.05
#: Stalled slopes within this of the slowest possible one are the producer's own drain.
_SAME_SLOPE = 1.05


def reference_bytes(warps: int, flavour: str) -> int:
    """32 KiB, or the nearest positive multiple of what all warps store at once."""
    unit = warps * WARP_STORE_BYTES[flavour]
    return max(1, round(REFERENCE_BYTES / unit)) * unit


def missing_entry(producers: int, warps: int, flavour: str, reason: str) -> BurstGap:
    """Return the entry of a (K, W) that was asked for and has nothing to fit."""
    none = Estimate.missing(reason)
    return BurstGap(
        producers=producers,
        warps=warps,
        bytes=reference_bytes(warps, flavour),
        t0_cycles=none,
        drain_gb_per_s=none,
        capacity_bytes=none,
        capacity_bytes_per_producer=none,
        issue_base_cycles=none,
        issue_cycles_per_warp_store=none,
        stalled_cycles_per_warp_store=none,
        knee_bytes=none,
        recovery_gap_cycles=none,
        peak_backlog_bytes=none,
    )


def drain_of(cell: CellFit, rates: Rates, sm_clock_mhz: float) -> tuple[Resampled | None, str, str | None]:
    """R of one (K, W): its own makespan slope, else that of its K by another statistic, unless the cell contradicts it.

    Returns
    -------
    rate : Resampled or None
    statistic : str
    reason : str or None
        Why there is none, or where it was taken from.
    """
    own = cell.makespan_gb_per_s(sm_clock_mhz)
    if own is not None:
        return own, "issue_max", None
    other = rates.best(cell.producers)
    if other is None:
        return None, "issue_max", "the sweep never saturates, and no other statistic gives R for this SM count"
    rate, statistic = other
    if not cell.fit.saturated:
        issued = cell.producers * cell.store_bytes * sm_clock_mhz / 1e3 / cell.fit.theta[FREE]
        if issued > _NOT_CONTRADICTED * rate.value:
            why = f"{issued:.0f} GB/s were issued without a stall, more than R of this SM count with other warps ({rate.value:.0f})"
            return None, "issue_max", f"the sweep never saturates: {why}"
    return rate, statistic, "of all warps of this SM count: this sweep has too few sizes past the knee"


def entry(cell: CellFit, flavour: str, rates: Rates, alone: CellFit | None, sm_clock_mhz: float) -> BurstGap:
    """Build the entry of one (K, W).

    Parameters
    ----------
    cell : CellFit
    flavour : str
    rates : Rates
    alone : CellFit or None
        The fit of a single producer with these warps; None when it was not measured.
    sm_clock_mhz : float
    """
    size = reference_bytes(cell.warps, flavour)
    volume = cell.producers * size
    t0, base, free = cell.free_cycles(size / cell.store_bytes), cell.parameter(BASE), cell.parameter(FREE)
    measured = cell.free_size(REFERENCE_BYTES, alone)
    rate, statistic, note = drain_of(cell, rates, sm_clock_mhz)
    per_cycle = 1e3 / sm_clock_mhz
    free_sizes = cell.onset.free + 1
    no_free = f"only {free_sizes} burst size lies below the knee" if free_sizes < 2 else None
    no_knee = f"the sweep never saturates: no stall up to {int(cell.stores[-1]) * cell.store_bytes} bytes per producer"
    no_rate = note or "R is not identified"
    capacity = None if rate is None else cell.capacity_bytes(rate, sm_clock_mhz)

    def of(number: Resampled | None, missing: str, *names: int, statistic: str = "issue_mean", reason: str | None = None) -> Estimate:
        if number is None:
            return Estimate.missing(missing, statistic)
        if any(NAMES[i] in cell.fit.at_bound for i in names):
            return _at_bound(number.value, statistic)
        return estimate(number, statistic=statistic, reason=reason)

    def of_free(number: Resampled, *names: int) -> Estimate:
        return Estimate.missing(no_free) if no_free else of(number, "", *names)

    saturated = cell.fit.saturated
    whole = of(capacity, no_rate if saturated else no_knee) if capacity is None or capacity.value > 0 else _at_bound(0.0, "issue_mean")
    return BurstGap(
        producers=cell.producers,
        warps=cell.warps,
        bytes=size,
        t0_cycles=of_free(cell.issue(measured)),
        t0_bytes=None if no_free else int(cell.stores[measured]) * cell.store_bytes,
        drain_gb_per_s=of(rate, no_rate, statistic=statistic, reason=note),
        capacity_bytes=whole,
        capacity_bytes_per_producer=whole.scaled(1 / cell.producers),
        issue_base_cycles=of_free(base, BASE),
        issue_cycles_per_warp_store=of_free(free, FREE),
        stalled_cycles_per_warp_store=of(combine(np.add, free, cell.parameter(EXCESS)) if saturated else None, no_knee, EXCESS),
        knee_bytes=of(combine(lambda n: n * cell.store_bytes, cell.parameter(KNEE)) if saturated else None, no_knee, KNEE),
        recovery_gap_cycles=of(
            None if rate is None else combine(lambda r, t: np.maximum(0.0, volume / (r * per_cycle) - t), rate, t0),
            no_rate,
            statistic=statistic,
        ),
        peak_backlog_bytes=of(
            None if rate is None else combine(lambda r, t: np.maximum(0.0, volume - r * per_cycle * t), rate, t0),
            no_rate,
            statistic=statistic,
        ),
        limited_by=_limit(cell, alone),
        median_error=float(np.median(cell.errors)),
        p90_error=float(np.quantile(cell.errors, 0.9)),
        p95_error=float(np.quantile(cell.errors, 0.95)),
        sizes=cell.stores.size,
        repetitions=cell.repetitions,
        processes=int(np.isfinite(cell.per_process[:, BASE]).sum()),
    )


def recipe(cell: CellFit, rates: Rates, plateaus: Sequence[Plateau], sm_clock_mhz: float) -> Recipe | None:
    """T0, R and Q of one (K, W) by the paper's recipe; None when its periodic bursts were not measured.

    T0 at the knee is taken proportional to the plateau's, from the largest size below the knee, a step of a few per cent of R*T0.
    """
    mine = [p for p in plateaus if (p.producers, p.warps) == (cell.producers, cell.warps)]
    if not mine:
        return None
    rate = rates.zero_gap.get(cell.producers)
    knee = cell.fit.theta[KNEE] * cell.store_bytes if cell.fit.saturated else np.inf
    flat = [p for p in mine if p.bytes < knee and p.issue_cycles.value is not None]
    no_plateau = "no plateau was measured at a size below the knee"
    t0 = flat[-1].issue_cycles if flat else Estimate.missing(no_plateau, "periodic")
    drain = Estimate.missing("no zero-gap periodic burst saturates", "zero_gap") if rate is None else estimate(rate, statistic="zero_gap")
    if not cell.fit.saturated:
        capacity = Estimate.missing("the isolated sweep never saturates")
    elif rate is None or t0.value is None:
        capacity = Estimate.missing("needs R and T0")
    else:
        per_byte = t0.value / flat[-1].bytes
        left = combine(
            lambda n, r: cell.producers * cell.store_bytes * n - r * 1e3 / sm_clock_mhz * per_byte * cell.store_bytes * n,
            cell.parameter(KNEE),
            rate,
        )
        capacity = estimate(left, statistic="issue_mean") if left.value > 0 else _at_bound(0.0, "issue_mean")
    return Recipe(bytes=flat[-1].bytes if flat else None, t0_cycles=t0, drain_gb_per_s=drain, capacity_bytes=capacity)


def _limit(cell: CellFit, alone: CellFit | None) -> Literal["producer", "link"] | None:
    if not cell.fit.saturated or alone is None:
        return None
    slope, slowest = (c.fit.theta[FREE] + (c.fit.theta[EXCESS] if c.fit.saturated else 0.0) for c in (cell, alone))
    return "producer" if slope <= _SAME_SLOPE * slowest else "link"


def _at_bound(value: float, statistic: str) -> Estimate:
    return Estimate(
        value=value,
        standard_error=None,
        low=None,
        high=None,
        status="at_bound",
        statistic=statistic,
        reason="the fit ended on the bound of this number, so it has no interval",
    )
