"""Worker side of scenes: one launch on every GPU that takes part, all of them in flight at once. Runs in the worker process only."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda import scene
from xstage_bench.device.cuda.gpu import CudaGpu, gpu_count, pinned

_THREADS = 512
_LEAD_NS = 6000  # from the conductor's last message to the common start: it must have crossed, and been seen by every SM
_SPIN_TIMEOUT_NS = 3_000_000_000
_POISON = 0xA5


class SceneWorker:
    """Kernels and memory of scenes; made on the first scene, kept for the process."""

    def __init__(self) -> None:
        self._gpus: list[_SceneGpu] = []
        self._host = np.zeros(0, np.uint8)

    def run(self, packed: scene.Packed) -> dict[int, dict[str, NDArray[Any]]]:
        """Execute and return what each GPU wrote. Everything is compiled, loaded and allocated before the first launch."""
        self._gpus = self._gpus or [_SceneGpu(i) for i in range(gpu_count())]
        if any((p.streams["kind"] == scene.PULL_BULK).any() and self._gpus[p.gpu].capability < (9, 0) for p in packed.parts):
            raise ValueError("bulk loads need a GPU of sm_90 or later")
        base = {place: self._memory(place, size) for place, size in packed.memory.items()}
        parts = [(self._gpus[p.gpu], p) for p in packed.parts]
        mail = np.array([g.mail for g, _ in parts], dtype=np.uint64)
        for gpu, part in parts:
            gpu.prepare(part, base, mail, packed.rounds)
        for gpu, _ in parts:
            gpu.synchronize()  # every mailbox is empty before anybody writes to one
        for rank, (gpu, part) in enumerate(parts):
            gpu.start(part, rank, len(parts), packed)
        return {part.gpu: gpu.collect(part, packed.rounds) for gpu, part in parts}

    def _memory(self, place: int, size: int) -> int:
        if place >= 0:
            return self._gpus[place].room(size, "data", fill=_POISON)
        if size > self._host.size:
            self._host = pinned(size, np.uint8)
        return int(self._host.ctypes.data)


class _SceneGpu(CudaGpu):
    """One GPU's kernels, memory that others store to, and buffers of one launch."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        # So much that a second CTA cannot join, and at least what the kernel uses (company.cu: Shared).
        shared = {"scene": max(self.lone_bytes, (92 if self.capability >= (9, 0) else 60) * 1024)}
        works: dict[str, dict[str, str]] = {"idle": {}, "mma": {"XSTAGE_GAP_MMA": "1"}}
        self._kernels = {work: self.load("company.cu", shared, words, cooperative=True)["scene"] for work, words in works.items()}
        self._stream = self.new_stream()
        self.mail = self.room(scene.MAIL.itemsize, "mailbox")

    def prepare(self, part: scene.GpuPart, base: dict[int, int], mail: NDArray[np.uint64], rounds: int) -> None:
        """Copy in what the launch reads and clear what it writes."""
        streams = part.streams.copy()
        streams["address"] += np.array([base[place] for place in part.places], dtype=np.uint64)
        for name, array in {"streams": streams, "steps": part.steps, "seats": part.seats, "mail": mail}.items():
            self.uploaded(array, name)
        for name, (shape, dtype) in _outputs(part, rounds).items():
            self.zeroed(int(np.prod(shape)) * dtype.itemsize, name)
        self.zeroed(scene.MAIL.itemsize, "mailbox")
        self.zeroed(scene.SCENE_CONTROL.itemsize, "control")

    def start(self, part: scene.GpuPart, rank: int, ranks: int, packed: scene.Packed) -> None:
        """Start the kernel and return at once."""
        u32, u64, at = np.uint32, np.uint64, self.at
        timeout_ns = _SPIN_TIMEOUT_NS + int(packed.expected_s * 1e9)
        arguments = (
            at("streams"), u32(len(part.streams)), at("steps"), u32(len(part.steps)), at("seats"),
            at("stamps"), u32(part.stamps_per_round), at("progress"), at("repetitions"), u32(packed.rounds),
            at("control"), at("mail"), u32(rank), u32(ranks), u64(_LEAD_NS), u64(timeout_ns),
        )  # fmt: skip
        self.launch(self._kernels[packed.scene.gap_work], (self.sms,), _THREADS, arguments, stream=self._stream.ptr)

    def collect(self, part: scene.GpuPart, rounds: int) -> dict[str, NDArray[Any]]:
        """Wait for the kernel, whose own waits all end, and copy out what it wrote."""
        self._stream.synchronize()
        return {name: self.downloaded(name, dtype, shape) for name, (shape, dtype) in _outputs(part, rounds).items()}


def _outputs(part: scene.GpuPart, rounds: int) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    return {
        "stamps": ((rounds, max(part.stamps_per_round, 1)), scene.SCENE_STAMP),
        "progress": ((rounds, scene.MAX_STREAMS, scene.SLOTS), np.dtype("<u8")),
        "repetitions": ((rounds,), scene.REPETITION),
    }
