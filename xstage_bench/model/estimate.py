"""A fitted number is never bare: it carries its error, its interval, its status and the statistic it came from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from xstage_bench.model.arrays import FloatArray, IntArray

EstimateStatus = Literal["ok", "not_identified", "at_bound"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """One fitted number. `value` is null unless `status` is ``ok`` or ``at_bound``; `reason` says why.

    Parameters
    ----------
    value, standard_error, low, high : float or None
        `low` and `high` bound the interval of level `level`.
    level : float
        Confidence level of the interval.
    status : {'ok', 'not_identified', 'at_bound'}
    statistic : str
        What the number was fitted on: for example ``"issue_mean"`` or ``"issue_max"`` (makespan).
    reason : str or None
    choice_error : float or None
        Standard error that the choice of burst sizes adds; in the interval, not in `standard_error`, and null where there is none.
    """

    value: float | None
    standard_error: float | None
    low: float | None
    high: float | None
    level: float = 0.95
    status: EstimateStatus = "ok"
    statistic: str = "issue_mean"
    reason: str | None = None
    choice_error: float | None = None

    @classmethod
    def missing(cls, reason: str, statistic: str = "issue_mean") -> Estimate:
        """Return the estimate of a number that the data does not determine."""
        return cls(value=None, standard_error=None, low=None, high=None, status="not_identified", statistic=statistic, reason=reason)

    def scaled(self, factor: float) -> Estimate:
        """Return the estimate of a multiple of the number."""
        numbers = (self.value, self.standard_error, self.low, self.high, self.choice_error)
        value, error, low, high, choice = (None if x is None else x * factor for x in numbers)
        return replace(self, value=value, standard_error=error, low=low, high=high, choice_error=choice)


def t_quantile(freedom: float, level: float = 0.95) -> float:
    """Return how many standard errors a two-sided t interval of this level reaches to either side."""
    from scipy.special import stdtrit

    return float(stdtrit(min(freedom, 1e9), (1 + level) / 2))


def t_half_width(values: FloatArray, level: float = 0.95) -> float | None:
    """Return half the width of the t interval of the mean of `values`; None of fewer than two."""
    return t_quantile(values.size - 1, level) * _standard_error(values) if values.size > 1 else None


def _standard_error(values: FloatArray) -> float:
    return float(values.std(ddof=1) / np.sqrt(values.size))


def with_spread(
    value: float, of_each: ArrayLike, statistic: str, *, level: float = 0.95, alone: str = "one process only", reason: str | None = None
) -> Estimate:
    """Return a number with the t interval of the spread of `of_each`, one for each process; `alone` says why there is none from one."""
    each = np.asarray(of_each, dtype=np.float64)
    half = t_half_width(each, level)
    if half is None:
        return Estimate(value=value, standard_error=None, low=None, high=None, level=level, statistic=statistic, reason=alone)
    low, high, error = value - half, value + half, _standard_error(each)
    return Estimate(value=value, standard_error=error, low=low, high=high, level=level, statistic=statistic, reason=reason)


def over_processes(values: FloatArray, process: IntArray, statistic: str, level: float = 0.95) -> Estimate:
    """Mean over processes of their medians, with a t interval; with one process over its repetitions, and it says so.

    Parameters
    ----------
    values : ndarray of float, shape (repetitions,)
        NaN where a repetition has none.
    process : ndarray of int, shape (repetitions,)
        The fresh process that each was measured in.
    statistic : str
    level : float
    """
    finite = np.isfinite(values)
    if not finite.any():
        return Estimate.missing("not measured", statistic)
    values, process = values[finite], process[finite]
    each = np.array([np.median(values[process == p]) for p in np.unique(process)])
    reason = None
    if each.size < 2:
        reason, each = "one process: the spread between processes is left out", values
    return with_spread(float(each.mean()), each, statistic, level=level, alone="one repetition", reason=reason)
