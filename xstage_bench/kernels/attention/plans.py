"""Plans of one launch of ``cuda/attention.cu``: tensors, owners, order, and the flags that a rank awaits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.tensor_map import rows_of_heads
from xstage_bench.kernels.attention.attention import PLAN, WAIT, AttentionBuild
from xstage_bench.kernels.attention.problem import Placing, Problem
from xstage_bench.kernels.attention.tile_order import blocks_of
from xstage_bench.kernels.gpu import TIMEOUT_NS

SHARD_FLAG_BYTES = 128
STORE_BOX_ROWS = 16


def plan_of(
    problem: Problem, build: AttentionBuild, inputs: Mapping[str, int], order: tuple[int, int], out: Mapping[int, int],
    rank: int | None = None,
) -> NDArray[Any]:  # fmt: skip
    """Return a plan without flags, of a rank that sends every row to its owner; without `rank`, of attention alone: one owner, itself.

    `inputs` has the addresses of ``q``, ``k`` and ``v``, each ``[rows, local heads, head_dim]``; `order` address and number of the tiles;
    `out` the address of each owner's rows, ``[rows of owner, heads, head_dim]``, of attention alone with the local heads only.
    """
    p, plan = problem, np.zeros(1, PLAN)
    plan["q"][0] = rows_of_heads(inputs["q"], p.head_dim, p.seq, p.local_heads, build.tile_rows)
    for name in ("k", "v"):
        plan[name][0] = rows_of_heads(inputs[name], p.head_dim, p.seq, p.local_kv_heads, build.keys)
    plan["order"], plan["tiles"] = order
    plan["seq"], plan["queries_per_key"] = p.seq, p.local_heads // p.local_kv_heads
    plan["scale_log2"], plan["timeout_ns"] = math.log2(math.e) / math.sqrt(p.head_dim), TIMEOUT_NS
    owners, rows_per_owner, heads = (1, p.seq, p.local_heads) if rank is None else (p.ranks, p.rows_per_owner, p.heads)
    plan["owners"], plan["rows_per_owner"], plan["heads_total"], plan["head_first"] = (
        owners, rows_per_owner, heads, (rank or 0) * p.local_heads,
    )  # fmt: skip
    for owner, address in out.items():
        rows = p.seq if rank is None else p.rows_of(owner)
        plan["out"][0, owner] = address
        plan["out_map"][0, owner] = rows_of_heads(address, p.head_dim, rows, heads, STORE_BOX_ROWS)
    return plan


def blocks_of_owner(problem: Problem, tile_rows: int, owner: int) -> range:
    """Return the tiles of a head that have rows of this owner."""
    first = owner * problem.rows_per_owner
    rows = problem.rows_of(owner)
    return range(first // tile_rows, -(-(first + rows) // tile_rows)) if rows else range(0)


def flag_words(problem: Problem, build: AttentionBuild) -> int:
    """Return how many words one sender has at one owner."""
    return problem.heads * blocks_of(problem.seq, build.tile_rows) if build.flags == "tile" else SHARD_FLAG_BYTES // 4


def awaited(placing: Placing, build: AttentionBuild, rank: int, ctas: int, address: Mapping[tuple[int, int], int]) -> NDArray[Any]:
    """Return the `WAIT` entries of the flags that arrive on the GPU of `rank` from other ranks, as many as one launch sets.

    `ctas` are those of every sender; `address` has the first flag word of each (source, owner).
    """
    p = placing.problem
    blocks = blocks_of(p.seq, build.tile_rows)
    here = [
        (source, owner, mine)
        for source in placing.sources
        for owner in range(p.ranks)
        if source != rank and placing.device_of(source, owner) == placing.devices[rank]
        and (mine := blocks_of_owner(p, build.tile_rows, owner))
    ]  # fmt: skip
    if build.flags == "tile":
        # Head by head, as they are computed: when the last tile arrives, few entries are left to be looked at.
        rows = [
            (address[source, owner] + 4 * ((source * p.local_heads + head) * blocks + mine.start), len(mine), 1)
            for head in range(p.local_heads)
            for source, owner, mine in here
        ]
    else:
        rows = [(address[s, o], 1, ctas if build.flags == "end" else len(mine) * p.local_heads) for s, o, mine in here]
    return np.array(rows, dtype=WAIT)
