"""Which experts the tokens of all ranks go to: rows per expert, from one seed."""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError

IntArray = NDArray[np.int64]
Routing = Literal["balanced", "skewed", "concentrated"]
ROUTINGS: tuple[str, ...] = get_args(Routing)
#: Of the Zipf weights of skewed routing: with 1 the busiest of 256 experts gets some 29 times the mean.
ZIPF = 1.0
_CHUNK = 4096


def route(experts: int, top_k: int, tokens: int, routing: str = "balanced", seed: int = 0) -> IntArray:
    """Return the experts of each token, distinct within a token.

    Parameters
    ----------
    experts, top_k, tokens : int
    routing : {'balanced', 'skewed', 'concentrated'}
        balanced: token t goes to the next `top_k` experts in turn, so that rows per expert differ by one at most.
        skewed: drawn without replacement with Zipf weights, the experts permuted by the seed.
        concentrated: every token goes to the first `top_k` experts, the worst case.
    seed : int

    Returns
    -------
    ndarray of int, shape (tokens, top_k)

    Raises
    ------
    UsageError
        More experts per token than there are, no token, or an unknown routing.
    """
    if not 1 <= top_k <= experts:
        raise UsageError(f"{top_k} experts a token of {experts}", "top_k is 1 to the number of experts")
    if tokens < 1:
        raise UsageError(f"{tokens} tokens", "at least one token")
    if routing == "balanced":
        return (np.arange(tokens, dtype=np.int64)[:, None] * top_k + np.arange(top_k)) % experts
    if routing == "concentrated":
        return np.tile(np.arange(top_k, dtype=np.int64), (tokens, 1))
    if routing != "skewed":
        raise UsageError(f"unknown routing '{routing}'", f"use one of: {', '.join(ROUTINGS)}")
    rng = np.random.default_rng(seed)
    weight = (1.0 / np.arange(1, experts + 1) ** ZIPF)[rng.permutation(experts)]
    out = np.empty((tokens, top_k), dtype=np.int64)
    for at in range(0, tokens, _CHUNK):
        # The top_k largest of log w + Gumbel noise are a draw without replacement (Gumbel's top-k trick).
        score = np.log(weight) + rng.gumbel(size=(min(_CHUNK, tokens - at), experts))
        out[at : at + len(score)] = np.argpartition(score, experts - top_k, axis=1)[:, experts - top_k :]
    return out


@lru_cache(maxsize=16)  # the same for every type, width of a row and order, and a draw of many tokens takes seconds
def rows_per_expert(experts: int, top_k: int, tokens: int, routing: str = "balanced", seed: int = 0) -> IntArray:
    """Return how many (token, expert) rows each expert gets; shape (experts,), sum ``tokens * top_k``; not to be written to."""
    rows = np.bincount(route(experts, top_k, tokens, routing, seed).ravel(), minlength=experts).astype(np.int64)
    rows.setflags(write=False)
    return rows
