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


def row_major(owner: NDArray[np.int64], ranks: int, rank: int) -> NDArray[np.int64]:
    """Rows in order: all SMs send to one owner at a time."""
    return np.arange(owner.size)


def owner_interleaved(owner: NDArray[np.int64], ranks: int, rank: int) -> NDArray[np.int64]:
    """The owners take turns, so SMs that finish together send to different ones: every owner's k-th tile before any k+1-st."""
    rank_within = np.zeros(owner.size, dtype=np.int64)
    for r in np.unique(owner):
        rank_within[owner == r] = np.arange((owner == r).sum())
    return np.lexsort((owner, rank_within))


def rotated(owner: NDArray[np.int64], ranks: int, rank: int) -> NDArray[np.int64]:
    """Rows in order from the owner after this rank: the ranks never all send to the same one."""
    return np.argsort((owner - rank - 1) % ranks, kind="stable")


def local_between(owner: NDArray[np.int64], ranks: int, rank: int) -> NDArray[np.int64]:
    """Each wave of tiles has its share of local ones, spread over the SMs: fewer SMs store to the link at the same time."""
    local, remote = np.flatnonzero(owner == rank), np.flatnonzero(owner != rank)
    # Merge two kinds evenly: the k-th of n comes at (k + 1/2) / n.
    at = np.concatenate([(np.arange(kind.size) + 0.5) / max(kind.size, 1) for kind in (local, remote)])
    remote = remote[owner_interleaved(owner[remote], ranks, rank)]
    return np.concatenate([local, remote])[np.argsort(at, kind="stable")]


#: Every order by name: of a head's tiles, given the owner of each, the number of ranks, and this rank.
ORDERS: dict[str, Callable[[NDArray[np.int64], int, int], NDArray[np.int64]]] = {
    "row-major": row_major, "owner-interleaved": owner_interleaved, "rotated": rotated, "local-between": local_between,
}  # fmt: skip


def tiles_of(name: str, heads: int, seq: int, tile_rows: int, ranks: int, rank: int) -> NDArray[np.uint32]:
    """Return the tiles of a rank's heads, head after head, in this order, as the kernel reads them."""
    blocks = ORDERS[name](owner_of_block(seq, tile_rows, ranks), ranks, rank).astype(np.uint32)
    if blocks.size > MAX_BLOCKS or heads > MAX_HEADS:
        raise UsageError(f"{blocks.size} tiles in a head", f"the kernel counts to {MAX_BLOCKS}; shorten the sequence")
    return np.asarray(np.repeat(np.arange(heads, dtype=np.uint32) << np.uint32(16), blocks.size) | np.tile(blocks, heads))
