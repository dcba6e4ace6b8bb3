"""Sums before sending: which of a rank's rows are results for the same token, so that one row goes to its owner instead of several.

Every row is weighted by its sender. A token has one result slot for each rank that has an expert of its, and its owner adds up those slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError
from xstage_bench.kernels.moe.build import NO_ROW, SUM_ROWS_BITS, owner_words
from xstage_bench.kernels.moe.layer import PADDING, IntArray, Layer, Rows
from xstage_bench.workloads.shapes import TILE

ALONE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """What becomes of each row of a rank.

    Parameters
    ----------
    token : ndarray of int, shape (rows,)
        Number of the row's token among those that this rank has rows of, in the order of owner and token; -1 for padding.
    number : ndarray of int, shape (rows,)
        Of the sum that the row is part of; -1 where it is its token's only row here, and for padding.
    parts : ndarray of int, shape (rows,)
        Rows of its token here; 0 for padding.
    weight : ndarray of float32, shape (rows,)
        Of the row's expert; 0 for padding.
    sums : int
        Of more than one row.
    sent : int
        Rows that leave: sums, and rows that are alone.
    """

    token: IntArray
    number: IntArray
    parts: IntArray
    weight: NDArray[np.float32]
    sums: int
    sent: int


def sums_of(layer: Layer, rows: Rows) -> Sums:
    """Find the rows of one rank that belong to the same token.

    Raises
    ------
    UsageError
        More sums, or rows of one sum, than the kernel's words can name.
    """
    real = rows.owner != PADDING
    tokens, token, parts = np.unique(rows.owner[real] * layer.tokens + rows.token[real], return_inverse=True, return_counts=True)
    several = parts > 1
    sums, most = int(several.sum()), int(parts.max(initial=0))
    if most >= 1 << SUM_ROWS_BITS or sums >= 1 << (32 - SUM_ROWS_BITS):
        raise UsageError(f"{sums} sums of up to {most} rows", f"at most {(1 << SUM_ROWS_BITS) - 1} rows of a token on one rank")
    number = np.where(several, np.cumsum(several) - 1, ALONE)
    weights = layer.weights()

    def of_rows(values: NDArray[Any], padding: float) -> NDArray[Any]:
        out = np.full(rows.owner.size, padding, dtype=values.dtype)
        out[real] = values
        return out

    return Sums(
        token=of_rows(token, PADDING),
        number=of_rows(number[token], ALONE),
        parts=of_rows(parts[token], 0),
        weight=of_rows(weights[rows.owner[real], rows.token[real], rows.k[real]], 0.0),
        sums=sums,
        sent=tokens.size,
    )


def present(layer: Layer, owner: int) -> NDArray[np.float32]:
    """Return 1 where a rank has an expert of a token, else 0: the weights with which an owner adds up its slots; shape (tokens, ep)."""
    expert = layer.routes()[owner]
    rank = np.where(expert >= 0, expert // layer.local_experts, PADDING)
    here: NDArray[np.float32] = (rank[:, :, None] == np.arange(layer.ep)).any(axis=1).astype(np.float32)
    return here


def sum_slots(layer: Layer) -> IntArray:
    """Number an owner's slots, one for each (token, rank), shape (tokens, ep): rank after rank, so that what one sends lies together."""
    return np.asarray(np.arange(layer.ep) * layer.tokens + np.arange(layer.tokens)[:, None])


def upload_sums(layer: Layer, rank: int, rows: Rows, sums: Sums) -> dict[str, Any]:
    """Return what the kernel needs beside its other arrays, on the current GPU and by the plan's names.

    `sums` and `sum_counts` must be made zero before each launch.
    """
    import cupy

    slots = sum_slots(layer)
    word = np.where(sums.number != ALONE, sums.number << SUM_ROWS_BITS | sums.parts, NO_ROW)
    return {
        "row_slot": cupy.asarray(owner_words(rows.owner, slots[rows.token, rank])),
        "row_sum": cupy.asarray(word.astype(np.uint32)),
        "row_weight": cupy.asarray(sums.weight),
        "sums": cupy.empty((max(1, sums.sums), layer.shape.hidden), dtype=cupy.float32),
        "sum_counts": cupy.empty((max(1, sums.sums), layer.shape.hidden // TILE), dtype=cupy.uint32),
        "weights": cupy.asarray(present(layer, rank).ravel()),
        "slot_of": cupy.asarray(slots.astype(np.uint32).ravel()),
    }
