"""A fitted number is never bare: it carries its error, its interval, its status and the statistic it came from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
