"""Worker side of scenes: one launch on every GPU that takes part, all of them in flight at once. Runs in the worker process only."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda import scene
from xstage_bench.device.cuda.compile import compile_kernel

_THREADS = 512
_LEAD_NS = 6000  # from the conductor's last message to the common start: it must have crossed, and been seen by every SM
_SPIN_TIMEOUT_NS = 3_000_000_000


class SceneWorker:
    """Kernels and memory of scenes; made on the first scene, kept for the process."""

    def __init__(self) -> None:
        self._gpus: list[_Gpu] = []
        self._pinned: Any = None
        self._pinned_bytes = 0

    def run(self, packed: scene.Packed) -> dict[int, dict[str, NDArray[Any]]]:
        """Execute and return what each GPU wrote. Everything is compiled, loaded and allocated before the first launch."""
        from cupy.cuda import runtime

        if not self._gpus:
            self._gpus = [_Gpu(i) for i in range(runtime.getDeviceCount())]
        if any((p.streams["kind"] == scene.PULL_BULK).any() and self._gpus[p.gpu].major < 9 for p in packed.parts):
            raise ValueError("bulk loads need a GPU of sm_90 or later")
        base = {place: self._memory(place, size) for place, size in packed.memory.items()}
        parts = [(self._gpus[p.gpu], p) for p in packed.parts]
        mail = np.array([g.mail for g, _ in parts], dtype=np.uint64)
        for rank, (gpu, part) in enumerate(parts):
            gpu.prepare(part, base, mail, packed.rounds, rank)
        for gpu, _ in parts:
            gpu.synchronize()  # every mailbox is empty before anybody writes to one
        for gpu, part in parts:
            gpu.launch(part, len(parts), packed)
        return {part.gpu: gpu.collect(part, packed.rounds) for gpu, part in parts}

    def _memory(self, place: int, size: int) -> int:
        if place >= 0:
            return self._gpus[place].memory(size)
        if size > self._pinned_bytes:
            import cupy

            self._pinned, self._pinned_bytes = cupy.cuda.alloc_pinned_memory(size), size
        return int(self._pinned.ptr)


class _Gpu:
    """One GPU's kernels, memory that others store to, and buffers of one launch."""

    def __init__(self, index: int) -> None:
        import cupy
        from cupy.cuda import runtime

        self._cupy, self._runtime, self._index = cupy, runtime, index
        runtime.setDevice(index)
        properties = runtime.getDeviceProperties(index)
        self._sms = int(properties["multiProcessorCount"])
        self.major = int(properties["major"])
        arch = f"sm_{properties['major']}{properties['minor']}"
        # More than half of an SM's shared memory, so that a second CTA cannot join; and at least what the kernel uses (company.cu: Shared).
        self._shared = max(int(properties["sharedMemPerMultiprocessor"]) // 2 + 1024, (92 if properties["major"] >= 9 else 60) * 1024)
        self._folder = TemporaryDirectory(prefix="xstage-")
        self._kernels = {"idle": self._load(arch, {}), "mma": self._load(arch, {"XSTAGE_GAP_MMA": "1"})}
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._data, self._data_bytes = 0, 0
        self._buffers: dict[str, tuple[int, int]] = {}
        self.mail = int(runtime.malloc(scene.MAIL.itemsize))  # plain cudaMalloc: peers write to it
        self._control = int(runtime.malloc(scene.SCENE_CONTROL.itemsize))
        self._rank = 0

    def _load(self, arch: str, defines: dict[str, str]) -> Any:
        path = Path(self._folder.name) / f"scene{len(defines)}.cubin"
        path.write_bytes(compile_kernel("company.cu", arch, defines))
        function = self._cupy.RawModule(path=str(path), enable_cooperative_groups=True).get_function("xstage_scene")
        assert function.kernel is not None  # loads it now
        function.max_dynamic_shared_size_bytes = self._shared
        return function

    def memory(self, size: int) -> int:
        """Address of at least `size` bytes that stores and loads of others go to; plain cudaMalloc."""
        if size > self._data_bytes:
            self._runtime.setDevice(self._index)
            if self._data:
                self._runtime.free(self._data)
            self._data, self._data_bytes = int(self._runtime.malloc(size)), size
            self._runtime.memset(self._data, 0xA5, size)
            self._runtime.deviceSynchronize()
        return self._data

    def prepare(self, part: scene.GpuPart, base: dict[int, int], mail: NDArray[np.uint64], rounds: int, rank: int) -> None:
        """Copy in what the launch reads and clear what it writes."""
        self._runtime.setDevice(self._index)
        self._rank = rank
        streams = part.streams.copy()
        streams["address"] += np.array([base[place] for place in part.places], dtype=np.uint64)
        for name, array in {"streams": streams, "steps": part.steps, "seats": part.seats, "mail": mail}.items():
            raw = np.ascontiguousarray(array)
            self._runtime.memcpy(self._buffer(name, raw.nbytes), raw.ctypes.data, raw.nbytes, self._runtime.memcpyHostToDevice)
        for name, size in _outputs(part, rounds).items():
            self._runtime.memset(self._buffer(name, size), 0, size)
        self._runtime.memset(self.mail, 0, scene.MAIL.itemsize)
        self._runtime.memset(self._control, 0, scene.SCENE_CONTROL.itemsize)

    def _buffer(self, name: str, size: int) -> int:
        at, have = self._buffers.get(name, (0, 0))
        if size > have:
            if at:
                self._runtime.free(at)
            at = int(self._runtime.malloc(size))
            self._buffers[name] = (at, size)
        return at

    def synchronize(self) -> None:
        """Wait until everything that was asked of this GPU is done."""
        self._runtime.setDevice(self._index)
        self._runtime.deviceSynchronize()

    def launch(self, part: scene.GpuPart, ranks: int, packed: scene.Packed) -> None:
        """Start the kernel and return at once."""
        self._runtime.setDevice(self._index)
        u32, u64 = np.uint32, np.uint64
        timeout_ns = _SPIN_TIMEOUT_NS + int(packed.expected_s * 1e9)
        at = {name: u64(address) for name, (address, _) in self._buffers.items()}
        arguments = (
            at["streams"], u32(len(part.streams)), at["steps"], u32(len(part.steps)), at["seats"],
            at["stamps"], u32(part.stamps_per_round), at["progress"], at["repetitions"], u32(packed.rounds),
            u64(self._control), at["mail"], u32(self._rank), u32(ranks), u64(_LEAD_NS), u64(timeout_ns),
        )  # fmt: skip
        with self._stream:
            self._kernels[packed.scene.gap_work]((self._sms,), (_THREADS,), arguments, shared_mem=self._shared)

    def collect(self, part: scene.GpuPart, rounds: int) -> dict[str, NDArray[Any]]:
        """Wait for the kernel, whose own waits all end, and copy out what it wrote."""
        self._runtime.setDevice(self._index)
        self._stream.synchronize()
        out: dict[str, NDArray[Any]] = {
            "stamps": np.zeros((rounds, max(part.stamps_per_round, 1)), scene.SCENE_STAMP),
            "progress": np.zeros((rounds, scene.MAX_STREAMS, scene.SLOTS), np.uint64),
            "repetitions": np.zeros(rounds, scene.REPETITION),
        }
        for name, array in out.items():
            self._runtime.memcpy(array.ctypes.data, self._buffers[name][0], array.nbytes, self._runtime.memcpyDeviceToHost)
        return out


def _outputs(part: scene.GpuPart, rounds: int) -> dict[str, int]:
    return {
        "stamps": rounds * max(part.stamps_per_round, 1) * scene.SCENE_STAMP.itemsize,
        "progress": rounds * scene.MAX_STREAMS * scene.SLOTS * 8,
        "repetitions": rounds * scene.REPETITION.itemsize,
    }
