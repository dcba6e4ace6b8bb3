"""A fitted number is never bare: it carries its error, its interval, its status and the statistic it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

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
    """

    value: float | None
    standard_error: float | None
    low: float | None
    high: float | None
    level: float = 0.95
    status: EstimateStatus = "ok"
    statistic: str = "issue_mean"
    reason: str | None = None

    @classmethod
    def missing(cls, reason: str, statistic: str = "issue_mean") -> Estimate:
        """Return the estimate of a number that the data does not determine."""
        return cls(value=None, standard_error=None, low=None, high=None, status="not_identified", statistic=statistic, reason=reason)


def over_processes(values: NDArray[np.float64], process: NDArray[np.int64], statistic: str, level: float = 0.95) -> Estimate:
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
    from scipy import stats

    finite = np.isfinite(values)
    if not finite.any():
        return Estimate.missing("not measured", statistic)
    values, process = values[finite], process[finite]
    medians = np.array([np.median(values[process == p]) for p in np.unique(process)])
    reason = None
    if medians.size < 2:
        reason, medians = "one process: the spread between processes is left out", values
    value = float(medians.mean())
    if medians.size < 2:
        return Estimate(value=value, standard_error=None, low=None, high=None, level=level, statistic=statistic, reason="one repetition")
    error = float(medians.std(ddof=1) / np.sqrt(medians.size))
    reach = float(stats.t.ppf((1 + level) / 2, medians.size - 1)) * error
    return Estimate(
        value=value, standard_error=error, low=value - reach, high=value + reach, level=level, statistic=statistic, reason=reason
    )
