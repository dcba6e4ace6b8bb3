"""Stamps of warps to bursts of producers: what an SM's warps stored together, and when its first began and its last ended."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from xstage_bench.errors import DataError
from xstage_bench.measure.stamps.layout import KINDS, Stamps

BURST, COMPUTE, WAIT, SIGNAL = (KINDS.index(kind) + 1 for kind in ("burst", "compute", "wait", "signal"))
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Parts:
    """What one SM did, part after part; arrays of shape (parts,).

    Parameters
    ----------
    smid : int
    warps : int
        That stamped bursts.
    kind, event, bytes : ndarray of int
        Bytes of all warps together.
    start_clock, end_clock : ndarray of int
        First warp's start and last warp's end.
    start_ns, end_ns : ndarray of float
    """

    smid: int
    warps: int
    kind: IntArray
    event: IntArray
    bytes: IntArray
    start_clock: IntArray
    end_clock: IntArray
    start_ns: FloatArray
    end_ns: FloatArray


def parts_of(stamps: Stamps) -> list[Parts]:
    """Return what each SM did, by ascending smid.

    Blocks that ran on an SM one after the other are joined.

    Raises
    ------
    DataError
        Two blocks stored at the same time on one SM, or the warps of a block stamped different parts.
    """
    return [_one_sm(stamps.take(np.flatnonzero(stamps.smid == smid)), int(smid)) for smid in np.unique(stamps.smid)]


def _one_sm(mine: Stamps, smid: int) -> Parts:
    blocks = [_one_block(mine.take(np.flatnonzero(mine.block == block)), smid, int(block)) for block in np.unique(mine.block)]
    blocks.sort(key=lambda b: int(b.start_clock[0]))
    for before, after in pairwise(blocks):
        if after.start_clock[0] < before.end_clock[-1]:
            raise DataError(
                f"two blocks stamped at the same time on SM {smid}: what one of them waits for is not its own backlog",
                "launch one block per SM (more shared memory per block does it)",
            )
    columns = {name: np.concatenate([getattr(b, name) for b in blocks]) for name in Parts.__slots__ if name not in ("smid", "warps")}
    return Parts(smid=smid, warps=max(b.warps for b in blocks), **columns)


def _one_block(mine: Stamps, smid: int, block: int) -> Parts:
    """Join the warps of a block: their n-th stamps are one part."""
    warps = [mine.take(np.flatnonzero(mine.warp == w)) for w in np.unique(mine.warp)]
    first = warps[0]
    for other in warps[1:]:
        if not (np.array_equal(other.kind, first.kind) and np.array_equal(other.event, first.event)):
            raise DataError(
                f"block {block} on SM {smid}: warps {first.warp[0]} and {other.warp[0]} stamped different parts",
                "let all warps that store execute the same stamps; stamp only those",
            )
    return Parts(
        smid=smid,
        warps=len(warps),
        kind=first.kind,
        event=first.event,
        bytes=np.sum([w.bytes for w in warps], axis=0),
        start_clock=np.min([w.start_clock for w in warps], axis=0),
        end_clock=np.max([w.end_clock for w in warps], axis=0),
        start_ns=np.min([w.start_ns for w in warps], axis=0),
        end_ns=np.max([w.end_ns for w in warps], axis=0),
    )
