"""Prediction intervals for bursts of a new schedule: the spread of the residuals in the burst's own regime, and what the parameters add.

Residuals are those of schedules that the fit did not see (never held-out ones). A burst's regime is read off the prediction alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xstage_bench.model.arrays import BoolArray, FloatArray, IntArray
from xstage_bench.model.node.calibrate import NodeFit, log_errors
from xstage_bench.model.node.data import MeasuredSchedules
from xstage_bench.model.node.parameters import NodeModel
from xstage_bench.model.node.predict import NodePrediction, predict_node

LEVEL = 0.9
#: free: nothing stalls so far. after: free, but the stage was saturated before. mild, deep: up to 3 T0, or more; first: on a drained
#: stage, carried: with a backlog or stagger from before.
REGIMES = ("free", "after", "mild_first", "deep_first", "mild_carried", "deep_carried")
#: Issue time over T0 from which a stall is called deep.
DEEP = 3.0
#: Of runs without random schedules to learn from: what the issue law may be off by at warp counts and sizes that no calibration has.
ISSUE_LAW_ERROR = 0.055
#: Likewise, by `REGIMES`: random bursts scatter more than the regular ones that a calibration has. Measured on the hold-out of 2 x H200.
IRREGULAR = (1.0, 1.0, 1.15, 1.0, 1.9, 1.35)
_MIN_POINTS = 30
_MAX_SCHEDULES = 500


@dataclass(frozen=True, slots=True)
class BurstRange:
    """What the calibration has seen; a burst outside is flagged."""

    producers: tuple[int, int]
    warps: tuple[int, int]
    bytes: tuple[int, int]


@dataclass(frozen=True, slots=True)
class ResidualQuantiles:
    """Log residual quantiles (measured over predicted) of each regime at `LEVEL`, by `REGIMES`, and the calibrated range."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    calibrated: BurstRange


def regimes(prediction: NodePrediction, isolated: BoolArray) -> IntArray:
    """Return the regime of each burst as an index of `REGIMES`.

    Parameters
    ----------
    prediction : NodePrediction
    isolated : ndarray of bool, shape (schedules,)
        Which schedules drain before each burst.
    """
    length = np.diff(prediction.first)
    owner = np.repeat(np.arange(length.size), length)
    stalled = prediction.stalled
    before = np.cumsum(stalled, dtype=np.int64) - stalled
    carried = (before - before[prediction.first[:-1]][owner] > 0) & ~isolated[owner]
    deep = prediction.issue_cycles > DEEP * prediction.t0_cycles
    free = np.where(carried, 1, 0)
    held = 2 + 2 * carried + deep
    return np.asarray(np.where(stalled, held, free), dtype=np.int64)


def learn_spread(fit: NodeFit, data: MeasuredSchedules, irregular: MeasuredSchedules | None = None, seed: int = 0) -> ResidualQuantiles:
    """Learn the residuals' spread from schedules that the fit did not see.

    Parameters
    ----------
    fit : NodeFit
    data : MeasuredSchedules
        Of the calibration probes.
    irregular : MeasuredSchedules, optional
        Random schedules: what is asked for is like them, so their spread is taken as it is. Without them that of regular schedules is, made
        wider by `IRREGULAR`.
    seed : int
        Chooses the schedules.
    """
    wider, least = (IRREGULAR, ISSUE_LAW_ERROR) if irregular is None or len(irregular.keys) < _MIN_POINTS else ((1.0,) * len(REGIMES), 0.0)
    seen = set(fit.schedules)
    fresh = [i for i, key in enumerate(data.keys) if key not in seen]
    fresh = fresh if len(fresh) >= _MIN_POINTS else list(range(len(data.keys)))
    rng = np.random.default_rng(seed)
    chosen = data.take(np.sort(rng.permutation(fresh)[:_MAX_SCHEDULES])) if irregular is None or least else irregular
    found = log_errors(fit.model, chosen)
    which = regimes(predict_node(fit.model, chosen.schedules, sm_clock_mhz=chosen.sm_clock_mhz), chosen.isolated)
    ends = (1 - LEVEL) / 2
    residual = -found
    usable = np.isfinite(residual)
    low, high = [], []
    for i in range(len(REGIMES)):
        mine = residual[usable & (which == i)]
        if mine.size < _MIN_POINTS:
            mine = residual[usable & ((which >= 2) == (i >= 2))]
        lo, hi = np.quantile(mine, [ends, 1 - ends]) if mine.size else (-1.0, 1.0)
        low.append(min(float(lo) * wider[i], -least))
        high.append(max(float(hi) * wider[i], least))
    return ResidualQuantiles(tuple(low), tuple(high), _range(data))


def _range(data: MeasuredSchedules) -> BurstRange:
    size = [b.bytes for s in data.schedules for b in s.bursts if b.bytes]
    producers = [s.producer_count for s in data.schedules]
    warps = [s.warps for s in data.schedules]
    return BurstRange((min(producers), max(producers)), (min(warps), max(warps)), (min(size, default=0), max(size, default=0)))


def interval(prediction: NodePrediction, spread: ResidualQuantiles, isolated: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return the bounds of each burst's mean issue time at `LEVEL`, cycles.

    Notes
    -----
    The spread of unseen residuals contains the parameters' own uncertainty: the schedules it was learned on were predicted with the same
    estimated parameters.
    """
    which = regimes(prediction, isolated)
    low, high = np.array(spread.low)[which], np.array(spread.high)[which]
    return prediction.issue_cycles * np.exp(low), prediction.issue_cycles * np.exp(high)


def in_range(
    spread: ResidualQuantiles, model: NodeModel, producers: FloatArray, warps: FloatArray | IntArray, size: FloatArray
) -> BoolArray:
    """Return which bursts lie within what the calibration has seen; larger bursts of a saturated stage only repeat."""
    known = spread.calibrated
    sms = len(model.placement.smids)
    return np.asarray(
        (producers >= known.producers[0])
        & (producers <= min(known.producers[1], sms))
        & (warps >= known.warps[0])
        & (warps <= known.warps[1])
        & (size >= known.bytes[0])
        & (size <= known.bytes[1])
    )
