"""Worker side of the replay: one launch per execution, on the source and, both ways, on the destination at once."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda import scene, tasks
from xstage_bench.device.cuda.compile import compile_kernel
from xstage_bench.schedule.tasks import FORMS

_LEAD_NS = 6000  # from the conductor's last message to the common start, as for scenes
_SPIN_TIMEOUT_NS = 1_000_000_000
_POISON = 0xA5


class TaskWorker:
    """Kernels and memory of the replay; made when the first schedule comes, kept for the process."""

    def __init__(self) -> None:
        self._gpus: list[_Gpu] = []
        self._loaded: list[tasks.PackedTasks] = []

    def load(self, packed: Sequence[tasks.PackedTasks]) -> None:
        """Compile and load the kernels of these schedules on every GPU, and copy their tasks in. They replace those loaded before."""
        from cupy.cuda import runtime

        if not self._gpus:
            self._gpus = [_Gpu(i) for i in range(runtime.getDeviceCount())]
        self._loaded = list(packed)
        for gpu in self._gpus:
            gpu.clear()
            for variant in dict.fromkeys(p.variant for p in packed):
                gpu.prepare(variant)
        for at, one in enumerate(packed):
            for g in one.lists:
                self._gpus[g].load(at, one)

    def execute(self, which: int, tag: int) -> dict[int, dict[str, NDArray[Any]]]:
        """Execute one of the loaded schedules and return what each GPU wrote."""
        packed = self._loaded[which]
        parts = [self._gpus[g] for g in packed.lists]
        mail = np.array([g.mail for g in parts], dtype=np.uint64)
        for gpu in parts:
            gpu.reset(which, mail)
        for gpu in parts:
            gpu.synchronize()  # every mailbox is empty before anybody writes to one
        for rank, gpu in enumerate(parts):
            other = self._gpus[packed.source if rank else packed.destination]
            gpu.launch(which, packed, rank, other.window, tag + rank * 0x51ED270B & 0xFFFFFFFF)
        return {g: gpu.collect(packed) for g, gpu in zip(packed.lists, parts, strict=True)}


class _Gpu:
    """One GPU: its kernels, the windows that it and its peers store to, the loaded schedules, and the buffers of one execution."""

    def __init__(self, index: int) -> None:
        import cupy
        from cupy.cuda import runtime

        self._cupy, self._runtime, self._index = cupy, runtime, index
        runtime.setDevice(index)
        properties = runtime.getDeviceProperties(index)
        self._sms = int(properties["multiProcessorCount"])
        self._arch = f"sm_{properties['major']}{properties['minor']}"
        self._least_shared = int(properties["sharedMemPerMultiprocessor"]) // 2 + 1024
        self._folder = TemporaryDirectory(prefix="xstage-")
        self._kernels: dict[tasks.TaskVariant, Any] = {}
        self._stream = cupy.cuda.Stream(non_blocking=True)
        size = self._sms * tasks.WINDOW_BYTES
        self.window, self._local = int(runtime.malloc(size)), int(runtime.malloc(size))  # plain cudaMalloc: peers store to the first
        for at in (self.window, self._local):
            runtime.memset(at, _POISON, size)
        self.mail = int(runtime.malloc(scene.MAIL.itemsize))
        self._control = int(runtime.malloc(scene.SCENE_CONTROL.itemsize))
        self._buffers: dict[str, tuple[int, int]] = {}
        self._schedules: dict[int, tuple[int, int, int]] = {}  # tasks, lists, bytes of events
        runtime.deviceSynchronize()

    def clear(self) -> None:
        """Forget the loaded schedules."""
        self._runtime.setDevice(self._index)
        for at, lists, _ in self._schedules.values():
            self._runtime.free(at)
            self._runtime.free(lists)
        self._schedules.clear()

    def prepare(self, variant: tasks.TaskVariant) -> None:
        """Compile and load one variant; nothing happens when it is loaded already."""
        if variant in self._kernels:
            return
        self._runtime.setDevice(self._index)
        cubin = compile_kernel("tasks.cu", variant.arch(self._arch), variant.defines(), variant.headers())
        path = Path(self._folder.name) / f"{hashlib.blake2b(cubin, digest_size=12).hexdigest()}.cubin"
        path.write_bytes(cubin)
        function = self._cupy.RawModule(path=str(path), enable_cooperative_groups=True).get_function("xstage_tasks")
        assert function.kernel is not None  # loads it now
        function.max_dynamic_shared_size_bytes = self._shared(variant)
        self._kernels[variant] = function

    def _shared(self, variant: tasks.TaskVariant) -> int:
        return max(self._least_shared, variant.shared_bytes)

    def load(self, which: int, packed: tasks.PackedTasks) -> None:
        """Copy one schedule in."""
        self._runtime.setDevice(self._index)
        at, lists = (self._copy(a, int(self._runtime.malloc(a.nbytes))) for a in (packed.tasks, packed.lists[self._index]))
        self._schedules[which] = (at, lists, packed.events * tasks.EVENT_BYTES)
        for name, (length, dtype) in packed.results().items():
            self._buffer(name, length * dtype.itemsize)
        self._buffer("events", max(packed.events * tasks.EVENT_BYTES, 4))

    def _copy(self, array: NDArray[Any], to: int) -> int:
        raw = np.ascontiguousarray(array)
        self._runtime.memcpy(to, raw.ctypes.data, raw.nbytes, self._runtime.memcpyHostToDevice)
        return to

    def _buffer(self, name: str, size: int) -> int:
        at, have = self._buffers.get(name, (0, 0))
        if size > have:
            if at:
                self._runtime.free(at)
            at = int(self._runtime.malloc(size))
            self._buffers[name] = (at, size)
        return at

    def reset(self, which: int, mail: NDArray[np.uint64]) -> None:
        """Clear what an execution counts in."""
        self._runtime.setDevice(self._index)
        self._copy(mail, self._buffer("mail", mail.nbytes))
        self._runtime.memset(self._buffers["events"][0], 0, self._schedules[which][2] or 4)
        self._runtime.memset(self._buffers["repetitions"][0], 0, scene.REPETITION.itemsize)
        self._runtime.memset(self.mail, 0, scene.MAIL.itemsize)
        self._runtime.memset(self._control, 0, scene.SCENE_CONTROL.itemsize)

    def synchronize(self) -> None:
        """Wait until everything that was asked of this GPU is done."""
        self._runtime.setDevice(self._index)
        self._runtime.deviceSynchronize()

    def launch(self, which: int, packed: tasks.PackedTasks, rank: int, remote: int, tag: int) -> None:
        """Start the kernel and return at once."""
        self._runtime.setDevice(self._index)
        u32, u64 = np.uint32, np.uint64
        at = {name: u64(address) for name, (address, _) in self._buffers.items()}
        listed, lists, _ = self._schedules[which]
        arguments = (
            u64(listed), u64(lists), at["stamps"], at["seals"], at["events"],
            u64(remote), u64(self._local), u32(tasks.WINDOW_BYTES), u32(tag), at["repetitions"],
            u64(self._control), at["mail"], u32(rank), u32(len(packed.lists)),
            u64(_LEAD_NS), u64(_SPIN_TIMEOUT_NS + int(packed.expected_s * 1e9)),
        )  # fmt: skip
        threads = 32 * packed.warps * (1 + FORMS.index(packed.variant.form))
        with self._stream:
            self._kernels[packed.variant]((self._sms,), (threads,), arguments, shared_mem=self._shared(packed.variant))

    def collect(self, packed: tasks.PackedTasks) -> dict[str, NDArray[Any]]:
        """Wait for the kernel, whose own waits all end, and copy out what it wrote."""
        self._runtime.setDevice(self._index)
        self._stream.synchronize()
        out = {name: np.zeros(length, dtype) for name, (length, dtype) in packed.results().items()}
        for name, array in out.items():
            self._runtime.memcpy(array.ctypes.data, self._buffers[name][0], array.nbytes, self._runtime.memcpyDeviceToHost)
        return out
