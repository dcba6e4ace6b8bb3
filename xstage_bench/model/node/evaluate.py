"""How far predictions are from measured schedules that no fit has seen: the numbers of docs/node-model.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xstage_bench.model.node.data import Measured
from xstage_bench.model.node.intervals import LEVEL, Spread, interval
from xstage_bench.model.node.parameters import NodeModel
from xstage_bench.model.node.predict import STALLED, predict_node

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
REGIMES = ("never_saturated", "saturated", "staggered", "near_onset")
_NEAR = (1.05, 1.3)  # measured issue over T0 that counts as near the onset


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One model on one pair's held-out schedules. Errors are |predicted - measured| / measured; biases are medians of the signed error.

    `interval_coverage_90` and `interval_score` (mean over bursts of the interval score relative to the measured value, lower is better;
    Gneiting and Raftery 2007) are None for a model without intervals.
    """

    model: str
    n_schedules: int
    n_bursts: int
    median_error: float
    p90_error: float
    p95_error: float
    slowest_median_error: float | None
    total_median_error: float
    total_p95_error: float
    balanced_accuracy: float | None
    interval_coverage_90: float | None
    interval_score: float | None
    by_regime: dict[str, tuple[int, float, float, float]]


def score_node(model: NodeModel, spread: Spread | None, data: Measured) -> Score:
    """Score the node model on held-out schedules.

    Parameters
    ----------
    model : NodeModel
    spread : Spread or None
        Without it there are no intervals.
    data : Measured
        Of the probe ``holdout``.
    """
    predicted = predict_node(model, data.schedules, sm_clock_mhz=data.sm_clock_mhz)
    bounds = interval(predicted, spread, data.isolated) if spread is not None else None
    return score_arrays(
        "node", data, predicted.issue_cycles, predicted.t0_cycles, predicted.total_ns(data.isolated), bounds, predicted.issue_max_cycles
    )


def score_arrays(
    name: str,
    data: Measured,
    issue_cycles: FloatArray,
    t0_cycles: FloatArray,
    total_ns: FloatArray,
    bounds: tuple[FloatArray, FloatArray] | None = None,
    slowest_cycles: FloatArray | None = None,
) -> Score:
    """Score any model's arrays.

    Parameters
    ----------
    name : str
    data : Measured
    issue_cycles, t0_cycles : ndarray, shape (bursts,)
        Predicted mean issue time; T0 as the reference of stall or no stall, the same for all models.
    total_ns : ndarray, shape (schedules,)
    bounds : tuple of ndarray, optional
        Lower and upper end of the 90 % interval of each burst.
    slowest_cycles : ndarray, optional
    """
    size = np.array([b.bytes for s in data.schedules for b in s.bursts])
    keep = np.isfinite(data.issue_cycles) & (data.issue_cycles > 0) & (size > 0)
    real, guess = data.issue_cycles[keep], issue_cycles[keep]
    error = guess / real - 1
    total = np.abs(total_ns / data.total_ns - 1)
    coverage, score = None, None
    if bounds is not None:
        low, high = bounds[0][keep], bounds[1][keep]
        coverage = float(((real >= low) & (real <= high)).mean())
        outside = np.maximum(low - real, 0.0) + np.maximum(real - high, 0.0)
        score = float(((high - low + 2 / (1 - LEVEL) * outside) / real).mean())
    which = regime_of(data, t0_cycles)
    table = {}
    for i, label in enumerate(REGIMES):
        mine = error[which[keep] == i]
        if mine.size:
            size_of = np.abs(mine)
            table[label] = (int(mine.size), float(np.median(size_of)), float(np.quantile(size_of, 0.9)), float(np.median(mine)))
    slowest = None
    if slowest_cycles is not None:
        slowest = float(np.nanmedian(np.abs(slowest_cycles[keep] / data.issue_max_cycles[keep] - 1)))
    return Score(
        model=name,
        n_schedules=len(data.schedules),
        n_bursts=int(real.size),
        median_error=float(np.median(np.abs(error))),
        p90_error=float(np.quantile(np.abs(error), 0.9)),
        p95_error=float(np.quantile(np.abs(error), 0.95)),
        slowest_median_error=slowest,
        total_median_error=float(np.nanmedian(total)),
        total_p95_error=float(np.nanquantile(total, 0.95)),
        balanced_accuracy=balanced_accuracy(real > STALLED * t0_cycles[keep], guess > STALLED * t0_cycles[keep]),
        interval_coverage_90=coverage,
        interval_score=score,
        by_regime=table,
    )


def regime_of(data: Measured, t0_cycles: FloatArray) -> NDArray[np.int64]:
    """Return the regime of each burst, as an index of `REGIMES`, by what was measured.

    Near the onset: a little above T0. Staggered: after a stalled burst of the same schedule, not isolated.
    """
    ratio = data.issue_cycles / t0_cycles
    stalled = ratio > STALLED
    owner = data.owner
    seen = np.cumsum(stalled, dtype=np.int64) - stalled
    after = (seen - seen[data.first[:-1]][owner] > 0) & ~data.isolated[owner]
    near = (ratio > _NEAR[0]) & (ratio < _NEAR[1])
    return np.where(near, 3, np.where(after, 2, np.where(stalled, 1, 0)))


def balanced_accuracy(real: BoolArray, guess: BoolArray) -> float | None:
    """Mean of the shares of stalled and of free bursts that are called so; None when one kind is missing."""
    if not real.any() or real.all():
        return None
    return float((guess[real].mean() + (~guess[~real]).mean()) / 2)


def noise_floor(data: Measured) -> tuple[float, float, float]:
    """Median, p90 and p95 of |one process - the median of the others| / it, over bursts: no model can do better."""
    each = data.by_process
    errors = []
    for p in range(len(each)):
        rest = np.nanmedian(np.delete(each, p, axis=0), axis=0)
        errors.append(np.abs(each[p] / rest - 1))
    found = np.concatenate(errors)
    found = found[np.isfinite(found)]
    return float(np.median(found)), float(np.quantile(found, 0.9)), float(np.quantile(found, 0.95))
