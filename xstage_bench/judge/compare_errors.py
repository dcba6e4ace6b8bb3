"""Does one model predict worse than another? The errors of both on their hold-outs, as rows of a comparison (docs/method.md).

Each score has the standard error that other schedules of the same family would have given it (whole schedules resampled). Where both runs
have the same schedules they are resampled together, and what these schedules do to both sides cancels. A fit differs from run to run beyond
that, which is added. The intervals share a part of the comparison's chance of a false alarm, so that those of T0, R and Q stay as wide as
they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from xstage_bench.judge.gate import FACTOR
from xstage_bench.model.document import Model, ModelScore, PairModel, Validation
from xstage_bench.model.holdout import Errors, draw_times, resampled

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]
#: Relative standard deviation of a score from fit to fit, beyond the schedules drawn. Refits of the recorded profile on other choices of
#: its calibration schedules moved median and p95 by 2 %; a run measures them anew as well.
BETWEEN_FITS = 0.06
#: Of the schedules of the smaller hold-out, how many must be in both for the two to be resampled together.
_SHARED = 0.9


@dataclass(frozen=True, slots=True)
class ErrorScore:
    """One score of a hold-out. `of` takes it as an error (less is better), and `key` names its standard error."""

    name: str
    key: str
    of: Callable[[ModelScore], float | None]


SCORES: tuple[ErrorScore, ...] = (
    ErrorScore("median_error", "median_error", lambda s: s.issue_time.median_error),
    ErrorScore("p95_error", "p95_error", lambda s: s.issue_time.p95_error),
    ErrorScore(
        "stall_misses", "regime_balanced_accuracy", lambda s: None if s.regime_balanced_accuracy is None else 1 - s.regime_balanced_accuracy
    ),
)


@dataclass(frozen=True, slots=True)
class Change:
    """An error over the baseline's, minus one, with its interval; null, with a reason, where it cannot be said."""

    score: str
    baseline: float | None
    value: float | None
    change: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None

    def verdict(self) -> Literal["same", "better", "worse", "undetermined"]:
        """Less error is better; what lies within a factor of `FACTOR`, the gate's, is the same."""
        if self.low is None or self.high is None:
            return "undetermined"
        if 1 + self.low >= 1 / FACTOR and 1 + self.high <= FACTOR:
            return "same"
        return "worse" if self.low > 0 else "better" if self.high < 0 else "undetermined"


def score_of(pair: PairModel, validation: Validation | None) -> ModelScore | None:
    """Return the headline score of the model that predicts a pair."""
    form = "node" if pair.node_basis is not None else "burst_gap"
    scores = [] if validation is None else validation.models
    mine = [s for s in scores if (s.pair, s.flavour) == (pair.pair, pair.flavour)]
    # A reference is shipped without its node model, and with its scores.
    return next((s for s in mine if s.model == form), next((s for s in mine if s.model == "node"), None)) if mine else None


def changes(old: ModelScore, new: ModelScore, together: tuple[Errors, Errors] | None, quantile: float) -> list[Change]:
    """Compare the errors of two models.

    Parameters
    ----------
    old, new : ModelScore
    together : tuple of Errors, optional
        Of both, on the same schedules in the same order.
    quantile : float
        Half an interval, in standard errors.
    """
    drawn = None
    if together is not None:
        times = draw_times(len(together[0].schedules))
        drawn = [resampled(errors, times) for errors in together]
    return [_change(score, old, new, drawn, quantile) for score in SCORES]


def _change(score: ErrorScore, old: ModelScore, new: ModelScore, drawn: list[dict[str, FloatArray]] | None, quantile: float) -> Change:
    a, b = score.of(old), score.of(new)
    if a is None or b is None:
        return Change(score.name, a, b, reason="all held-out bursts of one side are of one regime")
    if a <= 0 or b <= 0:
        return Change(score.name, a, b, reason="one side has no error at all: too few held-out bursts")
    errors = [s.standard_errors.get(score.key) for s in (old, new)]
    if errors[0] is None or errors[1] is None:
        return Change(score.name, a, b, reason="too few held-out schedules for an interval on one side")
    spread = math.hypot(errors[0] / a, errors[1] / b)
    if drawn is not None:
        with np.errstate(all="ignore"):
            pairs = [d[score.key] if score.key != "regime_balanced_accuracy" else 1 - d[score.key] for d in drawn]
            apart = np.log(pairs[1] / pairs[0])
        if np.isfinite(apart).all():
            spread = float(apart.std(ddof=1))
    half = quantile * math.sqrt(spread**2 + 2 * BETWEEN_FITS**2)
    middle = math.log(b / a)
    return Change(score.name, a, b, math.expm1(middle), math.expm1(middle - half), math.expm1(middle + half))


def same_schedules(old: tuple[Model, PairModel, pd.DataFrame], new: tuple[Model, PairModel, pd.DataFrame]) -> tuple[Errors, Errors] | None:
    """Return both sides' errors on the schedules that both runs held out; None where these are too few of them."""
    from xstage_bench.model.validate import holdout_errors

    both = [holdout_errors(*side) for side in (old, new)]
    if both[0] is None or both[1] is None:
        return None
    known = set(both[1].schedules)
    shared = [key for key in both[0].schedules if key in known]
    if len(shared) < max(2.0, _SHARED * min(len(b.schedules) for b in both if b is not None)):
        return None
    return both[0].only(shared), both[1].only(shared)
