"""Pinned host memory, mapped for every GPU, as the destination of stores over PCIe; checked by the CPU. Worker process only."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.gpu import pinned

LANES, LANE_WORDS, STORE_WORDS, TURN = 32, 4, 128, 4


class HostMemory:
    """`size` bytes of it, from the driver's pinned allocator: one address for CPU and GPUs."""

    def __init__(self, size: int) -> None:
        self._words = pinned(size // 4, np.uint32)

    def address(self) -> int:
        """Where the GPUs store to."""
        return int(self._words.ctypes.data)

    def poison(self, word: int) -> None:
        """Fill all of it."""
        self._words[:] = word

    def check(self, *, window_bytes: int, producers: int, warps: int, stores: int, tag: int, word: int) -> dict[str, int]:
        """Compare every word, stray writes included, with what one burst of st.v4 must have left, as ``cuda/verify.cu`` does.

        Returns
        -------
        dict
            ``mismatches`` (16-byte words), ``offset``, ``expected``, ``found`` of the first.
        """
        wrong, first = 0, (0, 0, 0)
        for producer in range(self._words.size * 4 // window_bytes):
            at = producer * window_bytes // 4
            have = self._words[at : at + window_bytes // 4]
            want = (
                expected(window_bytes, producer, warps, stores, tag, word) if producer < producers else np.full(have.size, word, np.uint32)
            )
            bad = np.flatnonzero(have != want)
            if bad.size:
                if not wrong:
                    first = ((at + int(bad[0])) * 4, int(want[bad[0]]), int(have[bad[0]]))
                wrong += np.unique(bad // LANE_WORDS).size
        return {"mismatches": wrong, "offset": first[0] // 16 * 16, "expected": first[1], "found": first[2]}


def expected(window_bytes: int, producer: int, warps: int, stores: int, tag: int, word: int) -> NDArray[np.uint32]:
    """Return the words of one producer's window after one burst into memory filled with `word` (``cuda/pattern.cuh``)."""
    out = np.full(window_bytes // 4, word, dtype=np.uint32)
    lane = np.arange(LANES, dtype=np.uint64)
    per_warp = window_bytes // warps // (TURN * STORE_WORDS * 4) * TURN * STORE_WORDS
    for warp in range(warps):
        block = np.zeros((stores, LANES, LANE_WORDS), dtype=np.uint64)
        block[..., 0] = tag + np.arange(stores)[:, None] // TURN
        block[..., 1] = tag ^ (producer << 16 | warp << 8 | lane)
        block[..., 2] = producer * 0x9E3779B9 + lane
        block[..., 3] = tag ^ 0xFFFFFFFF
        out[warp * per_warp : warp * per_warp + block.size] = (block.reshape(-1) & 0xFFFFFFFF).astype(np.uint32)
    return out
