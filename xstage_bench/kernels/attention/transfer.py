"""Copies as lists of pieces for ``cuda/transfer.cu``: the All-to-All by our own stores, its permutation, and what communication SMs do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from xstage_bench.kernels.attention.attention import AttentionBuild
from xstage_bench.kernels.attention.problem import BF16_BYTES, Placing, Problem
from xstage_bench.kernels.attention.tile_order import blocks_of

PIECE = np.dtype([(n, "<u8") for n in ("from", "to", "flag")] + [(n, "<u4") for n in ("rows", "row_bytes", "from_pitch", "to_pitch")])
ROWS_PER_PIECE = 32

Pieces = NDArray[np.void]


def staged_to_owner(problem: Problem, rank: int, owner: int, staged: int, address: int) -> Pieces:
    """Copy one owner's rows of a rank's heads from ``[rows, heads, head_dim]`` to ``[rows of owner, heads, head_dim]``."""
    p = problem
    pitch = p.ranks * p.row_bytes
    return _strip(
        p.rows_of(owner),
        p.row_bytes,
        (staged + owner * p.rows_per_owner * pitch + rank * p.row_bytes, pitch),
        (address + rank * p.row_bytes, pitch),
    )


def received_to_place(problem: Problem, source: int, owner: int, received: int, address: int) -> Pieces:
    """Copy what came from `source` as one block ``[rows of owner, local heads, head_dim]`` to where its heads belong: the permutation."""
    p = problem
    return _strip(p.rows_of(owner), p.row_bytes, (received, p.row_bytes), (address + source * p.row_bytes, p.ranks * p.row_bytes))


def _strip(rows: int, row_bytes: int, source: tuple[int, int], destination: tuple[int, int]) -> Pieces:
    first = np.arange(0, rows, ROWS_PER_PIECE)
    out = np.zeros(first.size, PIECE)
    out["from"], out["to"] = source[0] + first * source[1], destination[0] + first * destination[1]
    out["rows"], out["row_bytes"] = np.minimum(rows - first, ROWS_PER_PIECE), row_bytes
    out["from_pitch"], out["to_pitch"] = source[1], destination[1]
    return out


def tiles_to_owners(
    placing: Placing, build: AttentionBuild, rank: int, order: NDArray[np.uint32], staged: int, addresses: Mapping[int, int], flags: int
) -> Pieces:
    """Copy each remote part of each tile, in the order in which they are computed, once its flag of this launch is set.

    `staged` is where the attention stores rows for others, ``[rows, heads, head_dim]``; `addresses` are those of each owner's rows, and
    `flags` of this rank's words at itself, one per tile.
    """
    p = placing.problem
    width, pitch = p.head_dim * BF16_BYTES, p.ranks * p.row_bytes
    blocks = blocks_of(p.seq, build.tile_rows)
    rows = []
    for word in order.tolist():
        head, block = rank * p.local_heads + (word >> 16), word & 0xFFFF
        first, last = block * build.tile_rows, min((block + 1) * build.tile_rows, p.seq)
        for owner in range(first // p.rows_per_owner, (last - 1) // p.rows_per_owner + 1):
            if owner != rank:
                a, b = max(first, owner * p.rows_per_owner), min(last, (owner + 1) * p.rows_per_owner)
                to = addresses[owner] + (a - owner * p.rows_per_owner) * pitch + head * width
                rows.append((staged + a * pitch + head * width, to, flags + 4 * (head * blocks + block), b - a, width, pitch, pitch))
    return np.array(rows, dtype=PIECE)
