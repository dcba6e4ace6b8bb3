"""Inside the worker process: whole copies of a large buffer to a peer, by the copy engine or by a kernel on all SMs, timed by events."""

from __future__ import annotations

from typing import Any

import numpy as np

from xstage_bench.device.cuda.gpu import CudaGpu, pinned

_THREADS = 512
_WORD_BYTES = 16
_HOLD_NS = 2_000_000_000


class Copies:
    """Kernels and buffers of each GPU, made when they are first asked for. Peer access is the caller's business."""

    def __init__(self) -> None:
        self._gpus: dict[int, _CopyGpu] = {}
        self._salt = 0

    def copy(self, source: int, destination: int, size: int, loops: int, samples: int, warmups: int, method: str) -> dict[str, Any]:
        """Copy `size` bytes `loops` times in each sample; the source does the work.

        Returns
        -------
        dict
            ``bytes`` of one copy (what a kernel's grid divides evenly), ``ms`` of each sample, ``wrong`` 16-byte words at the destination.
        """
        for index in (source, destination):
            self._gpus[index] = self._gpus.get(index) or _CopyGpu(index)
        here, there = self._gpus[source], self._gpus[destination]
        to = [gpu.room(size, "copied") for gpu in (here, there)][1]
        words = size // _WORD_BYTES // (here.sms * _THREADS)
        done = words * here.sms * _THREADS * _WORD_BYTES if method == "copy_kernel" else size
        self._salt += 1
        there.number(done, 0)
        here.number(done, self._salt)
        ms = []
        for i in range(warmups + samples):
            elapsed = here.timed(to, done, words, loops if i >= warmups else 1, method)
            if i >= warmups:
                ms.append(elapsed)
        return {"bytes": done, "ms": ms, "wrong": there.wrong(done, self._salt)}


class _CopyGpu(CudaGpu):
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._kernels = self.load("copies.cu", dict.fromkeys(("copy", "hold", "number", "numbered"), 0))
        self._stream = self.new_stream()
        self._go = pinned(1024, np.uint32)  # a page

    def _start(self, name: str, blocks: int, threads: int, *arguments: np.generic) -> None:
        self.launch(self._kernels[name], (blocks,), threads, arguments, stream=self._stream.ptr)

    def number(self, size: int, salt: int) -> None:
        """Fill this GPU's buffer."""
        self._start("number", 4 * self.sms, 256, self.at("copied"), np.uint64(size // _WORD_BYTES), np.uint32(salt))
        self._stream.synchronize()

    def wrong(self, size: int, salt: int) -> int:
        """Count the words of this GPU's buffer that are not those of `number`."""
        wrong, words = np.uint64(self.zeroed(8, "wrong")), np.uint64(size // _WORD_BYTES)
        self._start("numbered", 4 * self.sms, 256, self.at("copied"), words, np.uint32(salt), wrong)
        self._stream.synchronize()
        return int(self.downloaded("wrong", np.uint64)[0])

    def timed(self, to: int, size: int, words: int, loops: int, method: str) -> float:
        """Milliseconds between two events around `loops` copies, enqueued while the stream is held."""
        start, end, memory = self.new_event(), self.new_event(), self.at("copied")
        self._go[0] = 0
        self._start("hold", 1, 1, np.uint64(self._go.ctypes.data), np.uint64(_HOLD_NS))
        start.record(self._stream)
        if method == "copy_kernel":
            self._start("copy", self.sms, _THREADS, np.uint64(to), memory, np.uint64(words), np.uint32(loops))
        else:
            for _ in range(loops):
                self.copy(to, int(memory), size, "DeviceToDevice", self._stream.ptr)
        end.record(self._stream)
        self._go[0] = 1
        end.synchronize()
        return self.elapsed_ms(start, end)
