"""Which producer executes which output tile of a MoE layer, and when: the same deal in every order, so that order is all that differs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Deal:
    """Output tiles in the order in which each producer executes its own; arrays of shape (tiles,).

    Parameters
    ----------
    producer : ndarray of int
        Ascending.
    second : ndarray of bool
        Linear-2 instead of Linear-1.
    block, column : ndarray of int
        Block of rows, and tile of columns within it.
    """

    producer: IntArray
    second: NDArray[np.bool_]
    block: IntArray
    column: IntArray


def deal_tiles(
    wave: IntArray, n1: int, n2: int, producers: int, order: str, lead: float, dependencies: str, group: IntArray | None = None,
) -> Deal:  # fmt: skip
    """Deal the tiles of blocks to producers; arguments as of `moe.tasks_of_blocks`.

    Parameters
    ----------
    wave : ndarray of int, shape (blocks,)
    n1, n2 : int
        Tiles of Linear-1 and Linear-2 of one block.
    producers : int
    order : {'serial', 'wave', 'interleaved'}
    lead : float
    dependencies : {'block', 'wave', 'none'}
    group : ndarray of int, shape (blocks,), optional
        Ascending within waves. Blocks of a group are walked column by column, so that a tile of weights serves all of them while it is in
        the cache; they become ready together. Default: every block by itself.
    """
    if order == "serial":
        wave = np.zeros_like(wave)
    group = np.arange(wave.size) if group is None else np.unique(group, return_inverse=True)[1]
    block1, column1 = _walk(group, n1)
    block2, column2 = _walk(group, n2)
    producer = np.concatenate([np.arange(block1.size) % producers, np.arange(block1.size, block1.size + block2.size) % producers])
    key1 = np.arange(block1.size, dtype=np.float64)
    key2 = _second_keys(wave[block2], group[block2], _ends(wave) * n1, _ends(group) * n1, n1 / n2, producers, order, lead, dependencies)
    turn = np.lexsort((np.concatenate([key1, key2]), producer))
    return Deal(
        producer=producer[turn],
        second=turn >= block1.size,
        block=np.concatenate([block1, block2])[turn],
        column=np.concatenate([column1, column2])[turn],
    )


def _walk(group: IntArray, columns: int) -> tuple[IntArray, IntArray]:
    """Return block and column of every tile, group by group, each column by column."""
    block, column = np.divmod(np.arange(group.size * columns), columns)
    turn = np.lexsort((block, column, group[block]))
    return block[turn], column[turn]


def _ends(part: IntArray) -> IntArray:
    """Return where each part of ascending numbers begins, and where the last one ends; shape (parts + 1,)."""
    return np.append(np.searchsorted(part, np.arange(part[-1] + 1)), part.size)


def _second_keys(
    wave: IntArray, group: IntArray, wave_ends: IntArray, group_ends: IntArray, ratio: float, producers: int, order: str, lead: float,
    dependencies: str,
) -> FloatArray:  # fmt: skip
    """Place the Linear-2 tiles between the Linear-1 tiles, so that no deal can dead-lock: each lies behind what it waits for.

    Linear-1 tile i has key i, and a Linear-2 tile a key half below the number of Linear-1 tiles that must lie before it. `wave_ends` and
    `group_ends` count Linear-1 tiles.
    """
    if order != "interleaved":
        return np.asarray(wave_ends[wave + 1] - 0.5)
    at = np.arange(wave.size) * ratio  # where the tile would stand with no lead
    if dependencies == "wave":
        # In waves, so that a wave's Linear-2 tiles spread over the Linear-1 tiles of the one that is `lead` later, whatever their sizes.
        edges = np.arange(wave_ends.size + int(np.ceil(lead)) + 1)
        reach = np.append(wave_ends, wave_ends[-1] + (wave_ends[-1] - wave_ends[-2]) * np.arange(1, edges.size - wave_ends.size + 1))
        place = np.interp(np.interp(at, wave_ends, np.arange(wave_ends.size)) + lead, edges, reach)
        return np.asarray(np.maximum(place, wave_ends[wave + 1]) - 0.5)
    own = group_ends[group + 1] - group_ends[group]
    return np.asarray(np.maximum(at + own + lead * producers, group_ends[group + 1]) - 0.5)
