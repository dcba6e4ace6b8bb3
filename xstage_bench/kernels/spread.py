"""A median with an interval that assumes nothing about the distribution: what repeated times of a kernel are reduced to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def spread(values: NDArray[np.float64]) -> dict[str, Any]:
    """Return the median with an order-statistic 95 % interval, and how many values there are.

    The interval runs from the k-th smallest to the k-th largest value, k the largest for which a median lies outside with at most 5 %
    (binomial); below 6 values there is none.
    """
    from scipy.stats import binom

    ordered = np.sort(values)
    n = ordered.size
    k = max(int(binom.ppf(0.025, n, 0.5)), 1)  # P(fewer than k below the median) <= 2.5 %
    inside = n >= 6
    value, low, high = (float(f"{x:.6g}") for x in (np.median(ordered), ordered[k - 1], ordered[n - k]))
    return {"value": value, "low": low if inside else None, "high": high if inside else None, "n": int(n)}
