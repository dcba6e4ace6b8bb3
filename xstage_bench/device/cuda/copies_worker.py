"""Inside the worker process: whole copies of a large buffer to a peer, by the copy engine or by a kernel on all SMs, timed by events."""

from __future__ import annotations

from typing import Any

import numpy as np

from xstage_bench.device.cuda.compile import compile_kernel

_THREADS = 512
_WORD_BYTES = 16
_HOLD_NS = 2_000_000_000
_NAMES = ("copy", "hold", "number", "numbered")


class Copies:
    """Kernels and buffers of each GPU, made when they are first asked for. Peer access is the caller's business."""

    def __init__(self) -> None:
        self._gpus: dict[int, _Gpu] = {}
        self._salt = 0

    def copy(self, source: int, destination: int, size: int, loops: int, samples: int, warmups: int, method: str) -> dict[str, Any]:
        """Copy `size` bytes `loops` times in each sample; the source does the work.

        Returns
        -------
        dict
            ``bytes`` of one copy (what a kernel's grid divides evenly), ``ms`` of each sample, ``wrong`` 16-byte words at the destination.
        """
        for index in (source, destination):
            if index not in self._gpus:
                self._gpus[index] = _Gpu(index)
        here, there = self._gpus[source], self._gpus[destination]
        here.room(size)
        there.room(size)
        words = size // _WORD_BYTES // (here.sms * _THREADS)
        done = words * here.sms * _THREADS * _WORD_BYTES if method == "copy_kernel" else size
        self._salt += 1
        there.number(done, 0)
        here.number(done, self._salt)
        ms = []
        for i in range(warmups + samples):
            elapsed = here.timed(there.memory, done, words, loops if i >= warmups else 1, method)
            if i >= warmups:
                ms.append(elapsed)
        return {"bytes": done, "ms": ms, "wrong": there.wrong(done, self._salt)}


class _Gpu:
    def __init__(self, index: int) -> None:
        import cupy
        from cupy.cuda import runtime

        self.index, self._cupy, self._runtime = index, cupy, runtime
        runtime.setDevice(index)
        properties = runtime.getDeviceProperties(index)
        self.sms = int(properties["multiProcessorCount"])
        # Loaded before anything spins, as everywhere in this process.
        from cuda.bindings import driver

        module = self._call(driver.cuModuleLoadData(compile_kernel("copies.cu", f"sm_{properties['major']}{properties['minor']}")))
        self._kernels = {name: self._call(driver.cuModuleGetFunction(module, f"xstage_{name}".encode())) for name in _NAMES}
        self._driver = driver
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._pinned = cupy.cuda.alloc_pinned_memory(4096)
        self._go = np.frombuffer(self._pinned, dtype=np.uint32, count=1)
        self._wrong = int(runtime.malloc(8))
        self.memory, self._size = 0, 0

    def _call(self, result: tuple[Any, ...]) -> Any:
        if int(result[0]) != 0:
            raise RuntimeError(f"GPU {self.index}: {result[0].name}")
        return result[1] if len(result) == 2 else None

    def room(self, size: int) -> None:
        """Take plain memory, which peers may map."""
        self._runtime.setDevice(self.index)
        if self._size < size:
            if self.memory:
                self._runtime.free(self.memory)
            self.memory, self._size = int(self._runtime.malloc(size)), size

    def _launch(self, name: str, blocks: int, threads: int, *arguments: Any) -> None:
        values = [np.array(a) for a in arguments]
        pointers = np.array([v.ctypes.data for v in values], dtype=np.uint64)
        stream = self._driver.CUstream(self._stream.ptr)
        launched = self._driver.cuLaunchKernel(self._kernels[name], blocks, 1, 1, threads, 1, 1, 0, stream, int(pointers.ctypes.data), 0)
        self._call(launched)

    def number(self, size: int, salt: int) -> None:
        """Fill this GPU's buffer."""
        self._runtime.setDevice(self.index)
        self._launch("number", 4 * self.sms, 256, np.uint64(self.memory), np.uint64(size // _WORD_BYTES), np.uint32(salt))
        self._stream.synchronize()

    def wrong(self, size: int, salt: int) -> int:
        """Count the words of this GPU's buffer that are not those of `number`."""
        found = np.zeros(1, np.uint64)
        self._runtime.setDevice(self.index)
        self._runtime.memset(self._wrong, 0, 8)
        words = np.uint64(size // _WORD_BYTES)
        self._launch("numbered", 4 * self.sms, 256, np.uint64(self.memory), words, np.uint32(salt), np.uint64(self._wrong))
        self._stream.synchronize()
        self._runtime.memcpy(found.ctypes.data, self._wrong, 8, self._runtime.memcpyDeviceToHost)
        return int(found[0])

    def timed(self, to: int, size: int, words: int, loops: int, method: str) -> float:
        """Milliseconds between two events around `loops` copies, enqueued while the stream is held."""
        self._runtime.setDevice(self.index)
        start, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
        self._go[0] = 0
        self._launch("hold", 1, 1, np.uint64(self._pinned.ptr), np.uint64(_HOLD_NS))
        start.record(self._stream)
        if method == "copy_kernel":
            self._launch("copy", self.sms, _THREADS, np.uint64(to), np.uint64(self.memory), np.uint64(words), np.uint32(loops))
        else:
            for _ in range(loops):
                self._runtime.memcpyAsync(to, self.memory, size, self._runtime.memcpyDeviceToDevice, self._stream.ptr)
        end.record(self._stream)
        self._go[0] = 1
        end.synchronize()
        return float(self._cupy.cuda.get_elapsed_time(start, end))
