"""The law at any (K, W), between the fitted ones: bilinear in the logarithms of K and W."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xstage_bench.errors import DataError
from xstage_bench.model.arrays import FloatArray
from xstage_bench.model.burst_gap import knee_bytes
from xstage_bench.model.document import BurstGap, DrainRate, PairModel
from xstage_bench.schedule.bursts import WARP_STORE_BYTES


@dataclass(frozen=True, slots=True)
class Law:
    """What a prediction for K producers with W warps needs.

    Parameters
    ----------
    producers, warps : int
    issue_base_cycles, issue_cycles_per_store : float
        T0(n) = base + slope * n for n > 0 warp-stores per warp.
    drain_gb_per_s : float
        R of K producers by makespan (else by a sustained or zero-gap burst), as `PairModel.drain` has it; infinite where none gives it.
    mean_gb_per_s, mean_capacity_bytes : float
        The stalled line of the mean over producers, (V - capacity) / rate. Its rate exceeds R where producers are served unequally.
    relative_error : float
        p90 of the law's error on the burst sizes it was fitted to, the half width of a 90 % prediction interval.
    """

    producers: int
    warps: int
    issue_base_cycles: float
    issue_cycles_per_store: float
    drain_gb_per_s: float
    mean_gb_per_s: float
    mean_capacity_bytes: float
    relative_error: float


def law_at(model: PairModel, producers: int, warps: int, sm_clock_mhz: float) -> Law:
    """Interpolate the law.

    Parameters
    ----------
    model : PairModel
    producers, warps : int
        Outside the fitted grid the nearest edge is used.
    sm_clock_mhz : float
        Of the fit: it converts the fitted cycles to GB/s.

    Returns
    -------
    Law

    Notes
    -----
    Rates and issue costs are interpolated in their logarithm, so that a rate proportional to K stays so; Q per producer and the base
    linearly. A (K, W) whose sweep never saturates takes rate and Q from the nearest K of the same W that does: it then stalls no
    earlier than that one.

    Raises
    ------
    DataError
        The pair has no (K, W) with an identified T0.
    """
    entries = [e for e in model.burst_gap if e.issue_cycles_per_warp_store.value]
    if not entries:
        raise DataError(f"the model of pair {model.pair} has no issue time: nothing was identified", "measure again: xstage run")
    counts = [(d.producers, r) for d in model.drain for r in [_drain(d)] if r]
    drain = np.exp(np.interp(np.log(producers), [np.log(n) for n, _ in counts], [np.log(r) for _, r in counts])) if counts else np.inf
    table = np.array([_numbers(e, model.flavour, sm_clock_mhz) for e in entries])
    k = np.log([e.producers for e in entries])
    w = np.log([e.warps for e in entries])
    for column in range(2, table.shape[1]):
        table[:, column] = _filled(table[:, column], k, w)
    base, cost, mean_rate, capacity, error = _bilinear(table, k, w, float(np.log(producers)), float(np.log(warps)))
    return Law(
        producers,
        warps,
        float(base),
        float(np.exp(cost)),
        float(drain),
        float(np.exp(mean_rate)),
        float(capacity) * producers,
        float(error),
    )


def _drain(rate: DrainRate) -> float | None:
    return rate.makespan.value or rate.sustained.value or rate.zero_gap.value


def _numbers(e: BurstGap, flavour: str, sm_clock_mhz: float) -> list[float]:
    store = e.warps * WARP_STORE_BYTES[flavour]
    base, cost = e.issue_base_cycles.value or 0.0, e.issue_cycles_per_warp_store.value or np.nan
    slope, knee = e.stalled_cycles_per_warp_store.value, e.knee_bytes.value
    mean_rate, per_producer = np.nan, np.nan
    if slope and knee is not None:
        mean = e.producers * store * sm_clock_mhz / 1e3 / slope
        t0_ns = (base + cost * knee / store) * 1e3 / sm_clock_mhz
        mean_rate = float(np.log(mean))
        per_producer = max(0.0, knee - float(knee_bytes(t0_ns, mean, 0.0)) / e.producers)
    return [base, np.log(cost), mean_rate, per_producer, e.p90_error or 0.0]


def _filled(values: FloatArray, k: FloatArray, w: FloatArray) -> FloatArray:
    """Replace NaN by the value at the nearest K of the same W, else of the nearest W; infinite when there is none at all."""
    known = np.isfinite(values)
    if not known.any():
        return np.full_like(values, np.inf)
    out = values.copy()
    for i in np.flatnonzero(~known):
        distance = np.abs(k - k[i]) + 1e3 * np.abs(w - w[i])
        out[i] = values[known][np.argmin(distance[known])]
    return out


def _bilinear(table: FloatArray, k: FloatArray, w: FloatArray, at_k: float, at_w: float) -> FloatArray:
    """Along K within each W, then along W; each W has its own Ks, so the grid may have holes."""
    by_w = []
    widths = np.unique(w)
    for width in widths:
        rows = np.flatnonzero(w == width)
        rows = rows[np.argsort(k[rows])]
        by_w.append([_along(at_k, k[rows], table[rows, c]) for c in range(table.shape[1])])
    stacked = np.array(by_w)
    return np.array([_along(at_w, widths, stacked[:, c]) for c in range(table.shape[1])])


def _along(at: float, x: FloatArray, y: FloatArray) -> float:
    return float(y[0]) if np.isinf(y).any() else float(np.interp(at, x, y))
