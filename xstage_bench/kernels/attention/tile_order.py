"""In which order the tiles of an attention are computed, which shapes the bursts that its stores make.

Tile ``t`` of an order goes to CTA ``t % ctas``, so consecutive tiles of one SM are `ctas` apart. Every order keeps heads together: all
SMs read the keys and values of one or two heads at a time, which the L2 cache holds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import UsageError

MAX_BLOCKS, MAX_HEADS = 1 << 16, 1 << 16


def blocks_of(seq: int, tile_rows: int) -> int:
    """Tiles of one head."""
    return -(-seq // tile_rows)


def owner_of_block(seq: int, tile_rows: int, ranks: int) -> NDArray[np.int64]:
    """Owner of the first row of each of a head's tiles; rank r owns the rows from ``r * ceil(seq / ranks)``."""
    return np.arange(blocks_of(seq, tile_rows)) * tile_rows // -(-seq // ranks)


def words(heads: NDArray[np.int64], blocks: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Encode tiles as the kernel reads them."""
    if heads.size and (int(heads.max()) >= MAX_HEADS or int(blocks.max()) >= MAX_BLOCKS):
        raise UsageError(f"{int(blocks.max()) + 1} tiles in a head", f"the kernel counts to {MAX_BLOCKS}; shorten the sequence")
    return (heads.astype(np.uint32) << np.uint32(16)) | blocks.astype(np.uint32)


def row_major(heads: int, seq: int, tile_rows: int, ranks: int, rank: int) -> NDArray[np.uint32]:
    """Head after head, rows in order: all SMs send to one owner at a time."""
    blocks = blocks_of(seq, tile_rows)
    tiles = np.arange(heads * blocks)
    return words(tiles // blocks, tiles % blocks)


def owner_interleaved(heads: int, seq: int, tile_rows: int, ranks: int, rank: int) -> NDArray[np.uint32]:
    """Within each head the owners take turns, so SMs that finish together send to different owners."""
    return _by_turns(heads, _turns(owner_of_block(seq, tile_rows, ranks)))


def rotated(heads: int, seq: int, tile_rows: int, ranks: int, rank: int) -> NDArray[np.uint32]:
    """Head after head, rows in order from the owner after this rank: the ranks never all send to the same one."""
    owner = owner_of_block(seq, tile_rows, ranks)
    return _by_turns(heads, np.argsort((owner - rank - 1) % ranks, kind="stable"))


def local_between(heads: int, seq: int, tile_rows: int, ranks: int, rank: int) -> NDArray[np.uint32]:
    """Each wave of `ctas` tiles has its share of local ones, spread over the SMs: fewer SMs store to the link at the same time."""
    owner = owner_of_block(seq, tile_rows, ranks)
    local, remote = np.flatnonzero(owner == rank), np.flatnonzero(owner != rank)
    # Merge two kinds evenly: the k-th of n comes at (k + 1/2) / n.
    at = np.concatenate([(np.arange(local.size) + 0.5) / max(local.size, 1), (np.arange(remote.size) + 0.5) / max(remote.size, 1)])
    remote = remote[_turns(owner[remote])]
    return _by_turns(heads, np.concatenate([local, remote])[np.argsort(at, kind="stable")])


def _turns(owner: NDArray[np.int64]) -> NDArray[np.int64]:
    """Order in which the k-th tile of every owner comes before the k+1-st of any."""
    rank_within = np.zeros(owner.size, dtype=np.int64)
    for r in np.unique(owner):
        mine = owner == r
        rank_within[mine] = np.arange(mine.sum())
    return np.lexsort((owner, rank_within))


def _by_turns(heads: int, blocks: NDArray[np.int64]) -> NDArray[np.uint32]:
    return words(np.repeat(np.arange(heads), blocks.size), np.tile(blocks, heads))


Order = Callable[[int, int, int, int, int], NDArray[np.uint32]]
#: Every order by name. Arguments: heads of this rank, rows, rows of a tile, ranks, this rank.
ORDERS: dict[str, Order] = {
    "row-major": row_major,
    "owner-interleaved": owner_interleaved,
    "rotated": rotated,
    "local-between": local_between,
}
