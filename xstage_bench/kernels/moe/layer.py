"""Which rows one rank computes in an expert-parallel MoE layer, where they come from and where their results go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError
from xstage_bench.workloads.moe import blocks_of, check_expert_parallel
from xstage_bench.workloads.routing import route
from xstage_bench.workloads.shapes import TILE, MoEShape

IntArray = NDArray[np.int64]
DTYPES = ("bf16", "fp8")
#: In `ExpertRows.owner`: a row that pads its block.
PADDING = -1
_STEP = {"bf16": 64, "fp8": 128}
_MAX_BLOCKS = 1 << 19


@dataclass(frozen=True, slots=True)
class Layer:
    """One MoE layer over the ranks of a group; `tokens` are per rank, `masked` the share of the (token, expert) pairs that are dropped.

    `UsageError`: a width that the kernel's tiles do not divide, or ranks that do not divide the experts.
    """

    shape: MoEShape
    tokens: int
    ep: int
    dtype: str = "bf16"
    routing: str = "balanced"
    masked: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_expert_parallel(self.shape, self.ep)
        if self.dtype not in DTYPES:
            raise UsageError(f"unknown type '{self.dtype}'", f"use one of: {', '.join(DTYPES)}")
        if self.shape.hidden % TILE or self.shape.inter % _STEP[self.dtype]:
            raise UsageError(
                f"{self.shape.name}: hidden {self.shape.hidden}, inter {self.shape.inter} in {self.dtype}",
                f"hidden in multiples of {TILE}, inter of {_STEP[self.dtype]}",
            )
        if not 0 <= self.masked <= 1:
            raise UsageError(f"masked is {self.masked}", "a share, 0 to 1")
        if self.tokens < 1:
            raise UsageError(f"{self.tokens} tokens", "at least one token a rank")

    @property
    def local_experts(self) -> int:
        """Experts of one rank."""
        return self.shape.experts // self.ep

    @property
    def element_bytes(self) -> int:
        """Bytes of one element of a token's row."""
        return 1 if self.dtype == "fp8" else 2

    def routes(self) -> IntArray:
        """Expert of each owner's tokens, -1 where masked; shape (ep, tokens, top_k)."""
        return _routes(self)

    def weights(self) -> NDArray[np.float32]:
        """Weight of each (token, k) of each owner, 0 where masked and else summing to 1; shape (ep, tokens, top_k)."""
        chosen = self.routes()
        raw = np.where(chosen >= 0, np.random.default_rng(self.seed + 2).uniform(0.5, 1.5, chosen.shape), 0.0)
        shares: NDArray[np.float32] = (raw / np.maximum(raw.sum(axis=2, keepdims=True), 1e-9)).astype(np.float32)
        return shares


@lru_cache(maxsize=2)
def _routes(layer: Layer) -> IntArray:
    """Kept: every rank of a layer asks several times, and GPUs wait meanwhile."""
    s = layer.shape
    chosen = route(s.experts, s.top_k, layer.ep * layer.tokens, layer.routing, layer.seed).reshape(layer.ep, layer.tokens, s.top_k)
    dropped = np.random.default_rng(layer.seed + 1).random(chosen.shape) < layer.masked
    routes = np.where(dropped, -1, chosen)
    routes.setflags(write=False)
    return routes


@dataclass(frozen=True, slots=True, eq=False)
class ExpertRows:
    """Rows of one rank, expert after expert, each expert padded to whole blocks of 128.

    `owner`, `token`, `k`, shape (blocks * 128,): whose token, which, and its how-manieth expert this is; owner -1 pads. `block_expert`,
    `block_rows`, shape (blocks,): local expert, and rows that are no padding.
    """

    owner: IntArray
    token: IntArray
    k: IntArray
    block_expert: IntArray
    block_rows: IntArray

    @property
    def blocks(self) -> int:
        """Blocks of 128 rows."""
        return self.block_expert.size


def rows_of(layer: Layer, rank: int) -> ExpertRows:
    """Collect the rows of a rank's experts, those of each expert in the order of owners and tokens.

    `UsageError`: more rows than the kernel's lists can name.
    """
    routes = layer.routes() - rank * layer.local_experts
    owner, token, k = np.nonzero((routes >= 0) & (routes < layer.local_experts))
    expert = routes[owner, token, k]
    order = np.argsort(expert, kind="stable")
    count = np.bincount(expert, minlength=layer.local_experts)
    block_rows, block_expert = blocks_of(count)
    if not block_rows.size:  # nothing goes to this rank: one block of padding, so that it takes part in the barriers like the others
        block_rows, block_expert = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    if block_rows.size > _MAX_BLOCKS:
        raise UsageError(f"{block_rows.size} blocks of rows", f"at most {_MAX_BLOCKS}")
    within = np.arange(expert.size) - np.repeat(np.cumsum(count) - count, count)
    first_block = np.searchsorted(block_expert, np.arange(layer.local_experts))  # also of experts without rows, where nobody looks
    at = np.repeat(first_block, count) * TILE + within
    columns = []
    for values in (owner, token, k):
        column = np.full(block_rows.size * TILE, PADDING, dtype=np.int64)
        column[at] = values[order]
        columns.append(column)
    return ExpertRows(columns[0], columns[1], columns[2], block_expert, block_rows)


def tiles_per_sm(layer: Layer, rows: ExpertRows, sms: int) -> float:
    """Return how many tiles of both kinds an SM executes, in the mean."""
    return rows.blocks * (layer.shape.linear1_tiles + layer.shape.linear2_tiles) / sms


@lru_cache(maxsize=4)
def slot_numbers(layer: Layer) -> IntArray:
    """Number the result slots of each owner: one for each (token, k), shape (ep, tokens, top_k).

    Expert after expert, the tokens of each in order, masked pairs last: the rows that one block sends to an owner are then neighbours. An
    owner numbers its slots from its own routes, and a sender learns the number with the row. Kept, as `_routes` are.
    """
    routes = layer.routes()
    each = layer.tokens * layer.shape.top_k
    expert = np.where(routes < 0, layer.shape.experts, routes).reshape(layer.ep, each)
    turn = np.argsort(expert, axis=1, kind="stable")
    numbers = np.empty_like(turn)
    np.put_along_axis(numbers, turn, np.broadcast_to(np.arange(each), turn.shape), axis=1)
    numbers.setflags(write=False)
    return numbers.reshape(routes.shape)
