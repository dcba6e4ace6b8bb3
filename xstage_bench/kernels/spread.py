"""Kernels timed against each other, in a fresh random order in each round, and what repeated times are reduced to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")


def in_turn(what: Sequence[T], rounds: int, rng: np.random.Generator, *, back: bool = False) -> Iterator[tuple[int, T]]:
    """Yield every round's number with each of `what`, in an order drawn anew; `back`: then all of them again, in the reverse order."""
    for number in range(rounds):
        order = rng.permutation(len(what)).tolist()
        for i in order + (order[::-1] if back else []):
            yield number, what[i]


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
