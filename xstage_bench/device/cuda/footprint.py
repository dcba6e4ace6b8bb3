"""Bursts dealt over a large destination, for the question when address translation costs: what crosses to the worker, and its side.

A Schedule has no field for where in memory a burst goes, so these have a kernel of their own, ``cuda/footprint.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.gpu import CudaGpu
from xstage_bench.device.cuda.layout import spread_evenly

DEAL = np.dtype([(n, "<u4") for n in ("chunk_mask", "run_log2", "multiplier", "inverse", "producers", "warps", "stores", "tag")])
RESULT = np.dtype([(n, "<u4") for n in ("start", "end", "drained", "start_ns", "end_ns", "state")])
MEETING = np.dtype([("start_ns", "<u8")] + [(n, "<u4") for n in ("arrived", "released", "abort", "pad")])
WRONG = np.dtype([("mismatches", "<u8"), ("offset", "<u8"), ("expected", "<u4"), ("found", "<u4")])

SLOT_BYTES = 512
_MULTIPLIER = 0x9E3779B1
_INVERSE = pow(_MULTIPLIER, -1, 1 << 32)
_POISON, _THREADS, _LEAD_NS, _TIMEOUT_NS = 0xA5A5A5A5, 512, 3000, 2_000_000_000


@dataclass(frozen=True, slots=True)
class Shape:
    """One burst: K producers of W warps with `stores` warp-stores each, in runs of `run_slots`, over `footprint_bytes`."""

    destination: int
    footprint_bytes: int
    run_slots: int
    producers: int
    warps: int
    stores: int

    def deal(self, tag: int) -> NDArray[Any]:
        """Return the kernel's argument; the number of chunks is a power of two."""
        chunks = self.footprint_bytes // SLOT_BYTES // self.run_slots
        run_log2 = self.run_slots.bit_length() - 1
        values = (chunks - 1, run_log2, _MULTIPLIER, _INVERSE, self.producers, self.warps, self.stores, tag & 0xFFFFFFFF)
        return np.array([values], DEAL)


def slots(shape: Shape, producer: int, warp: int) -> NDArray[np.int64]:
    """Slots that a warp stores to, in order: what ``cuda/footprint.cu`` computes, for tests and for counting pages."""
    j = np.arange(shape.stores, dtype=np.uint64)
    low = shape.run_slots.bit_length() - 1
    chunk = (j >> np.uint64(low)) * np.uint64(shape.producers * shape.warps) + np.uint64(producer * shape.warps + warp)
    mask = np.uint64(shape.footprint_bytes // SLOT_BYTES // shape.run_slots - 1)
    place = (chunk * np.uint64(_MULTIPLIER)) & mask
    return np.asarray(place << np.uint64(low) | (j & np.uint64(shape.run_slots - 1)), dtype=np.int64)


class _FootprintGpu(CudaGpu):
    """Kernels of one GPU, and the largest footprint as its own memory. Everything is loaded and allocated before the first launch."""

    def __init__(self, index: int, largest_bytes: int) -> None:
        super().__init__(index)
        shared = {"footprint": self.lone_bytes, "footprint_poison": 0, "footprint_check": 0}
        self._kernels = self.load("footprint.cu", shared, cooperative=True)
        self.memory = self.room(largest_bytes)
        for name, size in {"results": self.sms * 16 * RESULT.itemsize, "meeting": MEETING.itemsize, "wrong": WRONG.itemsize}.items():
            self.room(size, name)
        self._producer_of: dict[int, np.uint64] = {}

    def burst(self, memory: int, shape: Shape, tag: int) -> NDArray[Any]:
        """Execute one burst; per producer and warp what the kernel stamped."""
        if shape.producers not in self._producer_of:
            self._producer_of[shape.producers] = np.uint64(self.uploaded(spread_evenly(shape.producers, self.sms)))
        self.zeroed(MEETING.itemsize, "meeting")
        self.zeroed(shape.producers * shape.warps * RESULT.itemsize, "results")
        arguments = (
            np.uint64(memory), shape.deal(tag), self._producer_of[shape.producers], self.at("results"), self.at("meeting"),
            np.uint32(_LEAD_NS), np.uint64(_TIMEOUT_NS),
        )  # fmt: skip
        self.launch(self._kernels["footprint"], (self.sms,), _THREADS, arguments)
        return self.downloaded("results", RESULT, (shape.producers, shape.warps))

    def poison(self, size: int) -> None:
        arguments = (np.uint64(self.memory), np.uint64(size // 16), np.uint32(_POISON))
        self.launch(self._kernels["footprint_poison"], (self.sms * 4,), 256, arguments)
        self.synchronize()

    def check(self, shape: Shape, tag: int) -> NDArray[Any]:
        """Let this GPU check its own memory, every byte of the footprint."""
        wrong, count = np.uint64(self.zeroed(WRONG.itemsize, "wrong")), np.uint64(shape.footprint_bytes // 16)
        arguments = (np.uint64(self.memory), count, shape.deal(tag), np.uint32(_POISON), wrong)
        self.launch(self._kernels["footprint_check"], (self.sms * 4,), 256, arguments)
        return self.downloaded("wrong", WRONG)


class Footprints:
    """The worker's side: kernels and memory of the GPUs asked for, kept for the process."""

    def __init__(self) -> None:
        self._gpus: dict[int, _FootprintGpu] = {}
        self._tag = 0

    def execute(self, source: int, shape: Shape, largest_bytes: int, count: int) -> list[NDArray[Any]]:
        """Execute one burst `count` times; the stamps of each, shape (K, W)."""
        gpu, peer = self._ends(source, shape, largest_bytes)
        return [gpu.burst(peer.memory, shape, self._next()) for _ in range(count)]

    def verify(self, source: int, shape: Shape, largest_bytes: int) -> dict[str, int]:
        """Poison the destination, execute the burst once, and let the destination check every byte of the footprint."""
        gpu, peer = self._ends(source, shape, largest_bytes)
        peer.poison(shape.footprint_bytes)
        tag = self._next()
        gpu.burst(peer.memory, shape, tag)
        (found,) = peer.check(shape, tag)
        return {name: int(found[name]) for name in WRONG.names or ()}

    def _next(self) -> int:
        self._tag += 1
        return self._tag * _MULTIPLIER

    def _ends(self, source: int, shape: Shape, largest_bytes: int) -> tuple[_FootprintGpu, _FootprintGpu]:
        for index in (source, shape.destination):
            if index not in self._gpus:
                self._gpus[index] = _FootprintGpu(index, largest_bytes)
        return self._gpus[source], self._gpus[shape.destination]
