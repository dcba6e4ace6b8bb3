"""How far the node model's predictions are from measured schedules that no fit has seen: the numbers of docs/node-model.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from xstage_bench.model.burst_gap import STALLED
from xstage_bench.model.laws import balanced_accuracy
from xstage_bench.model.node.data import MeasuredSchedules
from xstage_bench.model.node.intervals import LEVEL, ResidualQuantiles, interval
from xstage_bench.model.node.parameters import NodeModel
from xstage_bench.model.node.predict import predict_node


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeScore:
    """One model on one pair's held-out schedules. Errors are |predicted - measured| / measured.

    `interval_coverage_90` and `interval_score` (mean over bursts of the interval score relative to the measured value, lower is better;
    Gneiting and Raftery 2007) are None for a model without intervals.
    """

    median_error: float
    p90_error: float
    p95_error: float
    total_median_error: float
    total_p95_error: float
    balanced_accuracy: float | None
    interval_coverage_90: float | None
    interval_score: float | None


def score_node(model: NodeModel, spread: ResidualQuantiles | None, data: MeasuredSchedules) -> NodeScore:
    """Score the node model on held-out schedules; without `spread` there are no intervals."""
    predicted = predict_node(model, data.schedules, sm_clock_mhz=data.sm_clock_mhz)
    size = np.array([b.bytes for s in data.schedules for b in s.bursts])
    keep = np.isfinite(data.issue_cycles) & (data.issue_cycles > 0) & (size > 0)
    real, guess, t0 = data.issue_cycles[keep], predicted.issue_cycles[keep], predicted.t0_cycles[keep]
    error = np.abs(guess / real - 1)
    total = np.abs(predicted.total_ns(data.isolated) / data.total_ns - 1)
    coverage, score = None, None
    if spread is not None:
        low, high = (bound[keep] for bound in interval(predicted, spread, data.isolated))
        coverage = float(((real >= low) & (real <= high)).mean())
        outside = np.maximum(low - real, 0.0) + np.maximum(real - high, 0.0)
        score = float(((high - low + 2 / (1 - LEVEL) * outside) / real).mean())
    return NodeScore(
        median_error=float(np.median(error)),
        p90_error=float(np.quantile(error, 0.9)),
        p95_error=float(np.quantile(error, 0.95)),
        total_median_error=float(np.nanmedian(total)),
        total_p95_error=float(np.nanquantile(total, 0.95)),
        balanced_accuracy=balanced_accuracy(real > STALLED * t0, guess > STALLED * t0),
        interval_coverage_90=coverage,
        interval_score=score,
    )
