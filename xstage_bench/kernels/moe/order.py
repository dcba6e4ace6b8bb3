"""The order of the tiles as data: a word per tile and a list per CTA, and the proof that no list waits for ever."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError
from xstage_bench.kernels.moe.layer import ExpertRows, IntArray, Layer
from xstage_bench.workloads.deal import deal_tiles
from xstage_bench.workloads.moe import default_experts_per_wave

Words = NDArray[np.uint32]
SECOND_BIT, BLOCK_SHIFT, BLOCK_MASK, COLUMN_MASK = 31, 12, 0x7FFFF, 0xFFF


@dataclass(frozen=True, slots=True)
class Order:
    """How the tiles are ordered: serial, wave or interleaved.

    `experts_per_wave`: default as the public Expert-Wave kernel chooses it. `lead`: Linear-1 tiles per CTA by which Linear-1 is ahead where
    it is interleaved. `group_blocks`: blocks of one expert that are walked column by column, so that its weights are read once; they become
    ready together.
    """

    kind: str = "wave"
    experts_per_wave: int | None = None
    lead: float = 1.0
    group_blocks: int = 8

    @property
    def name(self) -> str:
        """For tables."""
        if self.kind == "wave":
            return "wave" if self.experts_per_wave is None else f"wave-{self.experts_per_wave}"
        return f"interleaved-{self.lead:g}" if self.kind == "interleaved" else self.kind


def order_named(name: str) -> Order:
    """Return the order of this `Order.name`."""
    kind, _, number = name.partition("-")
    if kind == "wave":
        return Order(kind, int(number) if number else None)
    return Order(kind, lead=float(number)) if number else Order(kind)


@dataclass(frozen=True, slots=True, eq=False)
class TaskLists:
    """Tasks of all CTAs; those of CTA c are ``words[first[c]:first[c + 1]]``, executed in this order by two warpgroups in turn."""

    words: Words
    first: IntArray

    @property
    def ctas(self) -> int:
        """Number of lists."""
        return self.first.size - 1

    @property
    def second(self) -> NDArray[np.bool_]:
        """Linear-2 instead of Linear-1."""
        return np.asarray(self.words >> SECOND_BIT, dtype=bool)

    @property
    def block(self) -> IntArray:
        """Block of rows."""
        return (self.words >> BLOCK_SHIFT & BLOCK_MASK).astype(np.int64)

    @property
    def column(self) -> IntArray:
        """Tile of 128 columns."""
        return (self.words & COLUMN_MASK).astype(np.int64)


def usual_wave(layer: Layer, rows: ExpertRows, ctas: int) -> int:
    """Return how many experts the public kernel takes in a wave."""
    local = layer.local_experts
    return default_experts_per_wave(layer.shape, float(rows.block_rows.sum()) / local, local, ctas)


def wave_orders(layer: Layer, rows: ExpertRows, ctas: int) -> list[Order]:
    """Return Expert-Wave as the public kernel chooses its waves, and with half, twice and four times as many experts."""
    local = layer.local_experts
    usual = usual_wave(layer, rows, ctas)
    fitting = [n for n in (usual // 2, usual, 2 * usual, 4 * usual) if 1 <= n <= local and local % n == 0]
    return [Order("wave", n) for n in sorted(set(fitting))]


def task_lists(layer: Layer, rows: ExpertRows, order: Order, ctas: int) -> TaskLists:
    """Deal the tiles of a rank's rows to CTAs; `UsageError`: an unknown kind, or more experts a wave than there are."""
    shape = layer.shape
    per_wave = order.experts_per_wave
    if per_wave is None:
        per_wave = usual_wave(layer, rows, ctas)
    if not 1 <= per_wave <= layer.local_experts:
        raise UsageError(f"{per_wave} experts a wave", f"1 to {layer.local_experts}, the experts of one rank")
    # Experts without rows leave gaps in the numbers of waves, which number the waves that exist.
    wave = np.unique(rows.block_expert // per_wave, return_inverse=True)[1].astype(np.int64)
    # Groups of blocks that are walked column by column, numbered ascending.
    within = np.arange(rows.blocks) - np.searchsorted(rows.block_expert, rows.block_expert)
    group = np.asarray(rows.block_expert * rows.blocks + within // order.group_blocks)
    n1, n2 = shape.linear1_tiles, shape.linear2_tiles
    deal = deal_tiles(wave, n1, n2, ctas, order.kind, order.lead, "block", group)
    words = deal.second.astype(np.uint32) << SECOND_BIT | deal.block.astype(np.uint32) << BLOCK_SHIFT | deal.column.astype(np.uint32)
    return TaskLists(words.astype(np.uint32), np.searchsorted(deal.producer, np.arange(ctas + 1)).astype(np.int64))


def check_lists(lists: TaskLists, blocks: int, linear1_tiles: int, linear2_tiles: int) -> None:
    """Refuse lists that could hang or leave work undone; every launch passes through here.

    `UsageError`: a tile is missing, there twice or does not exist; or Linear-2 tiles wait for Linear-1 tiles that lie behind them.
    """
    wanted = np.concatenate([_all_words(blocks, linear1_tiles, 0), _all_words(blocks, linear2_tiles, 1)])
    have, count = np.unique(lists.words, return_counts=True)
    for what, wrong in (
        ("is no tile of this layer", have[~np.isin(have, wanted)]),
        ("is there twice", have[count > 1]),
        ("is missing", wanted[~np.isin(wanted, have)]),
    ):
        if wrong.size:
            raise UsageError(f"the task lists are unsafe: {_describe(int(wrong[0]))} {what}", "make them with task_lists")
    if lists.first[0] != 0 or lists.first[-1] != lists.words.size or (np.diff(lists.first) < 0).any():
        raise UsageError("the task lists are unsafe: some tiles are in no list", "make them with task_lists")
    stuck = _stuck(lists, blocks, linear1_tiles)
    if stuck is not None:
        raise UsageError(
            f"the task lists are unsafe: {_describe(stuck)} waits for Linear-1 tiles of its block that lie behind tasks that wait too",
            "put every block's Linear-1 tiles before its Linear-2 tiles",
        )


def _all_words(blocks: int, columns: int, second: int) -> Words:
    block, column = np.divmod(np.arange(blocks * columns, dtype=np.int64), columns)
    return (second << SECOND_BIT | block << BLOCK_SHIFT | column).astype(np.uint32)


def _describe(word: int) -> str:
    return f"Linear-{1 + (word >> SECOND_BIT)} tile {word & COLUMN_MASK} of block {word >> BLOCK_SHIFT & BLOCK_MASK}"


def _stuck(lists: TaskLists, blocks: int, linear1_tiles: int) -> int | None:
    """Execute the dependencies alone. A CTA loads its tasks in order, so a task that waits holds up all behind it in its list."""
    missing = np.full(blocks, linear1_tiles).tolist()
    second, block = lists.second.tolist(), lists.block.tolist()
    at, end = lists.first[:-1].tolist(), lists.first[1:].tolist()
    waiting: dict[int, list[int]] = {}
    ready = deque(range(lists.ctas))
    while ready:
        c = ready.popleft()
        while at[c] < end[c]:
            b = block[at[c]]
            if second[at[c]]:
                if missing[b]:
                    waiting.setdefault(b, []).append(c)
                    break
            else:
                missing[b] -= 1
                if not missing[b]:
                    ready.extend(waiting.pop(b, ()))
            at[c] += 1
    return next((int(lists.words[at[c]]) for c in range(lists.ctas) if at[c] < end[c]), None)
