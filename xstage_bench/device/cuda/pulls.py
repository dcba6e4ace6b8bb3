"""Loads from another memory in bursts: what crosses to the worker, and its side. The kernel is ``cuda/pulls.cu``.

A Schedule says what is stored, so these have a kernel of their own. A pair names who loads and whose memory: by ``0>1`` GPU 0 reads GPU 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.gpu import CudaGpu, pinned
from xstage_bench.device.cuda.layout import spread_evenly
from xstage_bench.schedule.bursts import HOST

PULL = np.dtype([(n, "<u4") for n in ("producers", "warps", "depth", "loads", "stores", "tag")])
RESULT = np.dtype([(n, "<u4") for n in ("start", "end", "start_ns", "end_ns", "sum", "state")])
CONTROL = np.dtype([(n, "<u4") for n in ("arrived", "released", "abort", "pad")] + [("start_ns", "<u8")])

LOAD_BYTES, WINDOW_BYTES = 512, 256 * 1024
DEPTHS = (1, 2, 4, 8, 16)
DONE = 1
_THREADS, _LEAD_NS, _TIMEOUT_NS = 512, 3000, 2_000_000_000


@dataclass(frozen=True, slots=True)
class PullShape:
    """K producers of W warps, each of which keeps `depth` loads of 512 bytes in flight until it has made `loads`, behind `stores` stores.

    `owner` is the GPU whose memory is read, or `HOST`. `warps` is a power of two, `depth` one of `DEPTHS`, `loads` a multiple of it.
    """

    owner: int
    producers: int
    warps: int
    depth: int
    loads: int
    stores: int = 0


def sums(shape: PullShape, salt: int) -> NDArray[np.uint32]:
    """Return what each warp must have summed, shape (K, W), for memory filled with `salt`: the arithmetic of ``cuda/pulls.cu``."""
    own = WINDOW_BYTES // LOAD_BYTES // shape.warps
    each = _sums_of_loads(shape.producers, salt).reshape(-1, own)  # the windows of all warps lie side by side
    turns, rest = divmod(shape.loads, own)
    total = each.sum(axis=1, dtype=np.uint32) * np.uint32(turns) + each[:, :rest].sum(axis=1, dtype=np.uint32)
    return np.asarray(total, dtype=np.uint32).reshape(shape.producers, shape.warps)


@lru_cache(maxsize=8)
def _sums_of_loads(producers: int, salt: int) -> NDArray[np.uint32]:
    """Sum over the lanes of every load of all windows."""
    x, y, z, w = words(np.arange(producers * WINDOW_BYTES // 16, dtype=np.uint32), salt)
    return np.asarray((x + 3 * y + 5 * z + 7 * w).reshape(-1, LOAD_BYTES // 16).sum(axis=1, dtype=np.uint32))


def words(place: NDArray[np.uint32], salt: int) -> tuple[NDArray[np.uint32], ...]:
    """Return the four words of the 16 bytes at each place."""
    x = place * np.uint32(0x9E3779B1) ^ np.uint32(salt)
    return x, x ^ (x >> np.uint32(7)), ~x, x + np.uint32(salt)


class _PullGpu(CudaGpu):
    """Kernels of one GPU, the memory that is read, and where it stores to. Everything is loaded and allocated before the first launch."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._kernels = self.load("pulls.cu", {"pull": self.lone_bytes, "pull_fill": 0}, cooperative=True)
        self.size = self.sms * WINDOW_BYTES
        self.memory, self.landing = np.uint64(self.room(self.size)), np.uint64(self.room(self.size))
        self.room(self.sms * 16 * RESULT.itemsize, "results")
        self.room(CONTROL.itemsize, "control")

    def write(self, salt: int) -> None:
        self.launch(self._kernels["pull_fill"], (self.sms,), 256, (self.memory, np.uint64(self.size // 16), np.uint32(salt)))
        self.synchronize()

    def pull(self, memory: np.uint64, landing: np.uint64, shape: PullShape, producer_of: np.uint64, tag: int) -> NDArray[Any]:
        for name, size in (("control", CONTROL.itemsize), ("results", shape.producers * shape.warps * RESULT.itemsize)):
            self.zeroed(size, name)
        entry = (shape.producers, shape.warps, shape.depth, shape.loads, shape.stores, tag)
        arguments = (
            memory, landing, np.array([entry], PULL), producer_of, self.at("results"), self.at("control"), np.uint64(_LEAD_NS),
            np.uint64(_TIMEOUT_NS),
        )  # fmt: skip
        self.launch(self._kernels["pull"], (self.sms,), _THREADS, arguments)
        return self.downloaded("results", RESULT, (shape.producers, shape.warps))


class Pulls:
    """The worker's side: kernels and memory of the GPUs asked for, kept for the process."""

    def __init__(self) -> None:
        self._gpus: dict[int, _PullGpu] = {}
        self._host: dict[int, tuple[NDArray[np.uint32], NDArray[np.uint32]]] = {}
        self._producer_of: dict[tuple[int, int], np.uint64] = {}
        self._tag = 0

    def execute(self, source: int, shape: PullShape, count: int) -> list[NDArray[Any]]:
        """Execute a pull `count` times; the stamps of each, shape (K, W). The sums are those of another filling each time it is called."""
        self._tag += 1
        gpu = self._gpu(source)
        if (source, shape.producers) not in self._producer_of:
            self._producer_of[source, shape.producers] = np.uint64(gpu.uploaded(spread_evenly(shape.producers, gpu.sms)))
        memory, landing = self._owned(source, shape.owner)
        arguments = (memory, landing, shape, self._producer_of[source, shape.producers])
        return [gpu.pull(*arguments, self._tag * 1000 + i) for i in range(count)]

    def fill(self, source: int, owner: int, salt: int) -> None:
        """Write what is read."""
        self._owned(source, owner)
        if owner == HOST:
            memory = self._host[source][0].reshape(-1, 4)
            memory[:] = np.stack(words(np.arange(len(memory), dtype=np.uint32), salt), axis=1)
        else:
            self._gpu(owner).write(salt)

    def _gpu(self, index: int) -> _PullGpu:
        if index not in self._gpus:
            self._gpus[index] = _PullGpu(index)
        return self._gpus[index]

    def _owned(self, source: int, owner: int) -> tuple[np.uint64, np.uint64]:
        if owner != HOST:
            return self._gpu(owner).memory, self._gpu(owner).landing
        if source not in self._host:
            count = self._gpu(source).size // 4
            self._host[source] = pinned(count, np.uint32), pinned(count, np.uint32)
        read, stored = self._host[source]
        return np.uint64(read.ctypes.data), np.uint64(stored.ctypes.data)
