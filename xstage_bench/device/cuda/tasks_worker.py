"""Worker side of the replay: one launch per execution, on the source and, both ways, on the destination at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda import scene, tasks
from xstage_bench.device.cuda.gpu import CudaGpu, LoadedKernel, gpu_count
from xstage_bench.schedule.tasks import FORMS

_LEAD_NS = 6000  # from the conductor's last message to the common start, as for scenes
_SPIN_TIMEOUT_NS = 1_000_000_000
_POISON = 0xA5


class TaskWorker:
    """Kernels and memory of the replay; made when the first schedule comes, kept for the process."""

    def __init__(self) -> None:
        self._gpus: list[_TaskGpu] = []
        self._loaded: list[tasks.PackedTasks] = []

    def load(self, packed: Sequence[tasks.PackedTasks]) -> None:
        """Compile and load the kernels of these schedules on every GPU, and copy their tasks in. They replace those loaded before."""
        self._gpus = self._gpus or [_TaskGpu(i) for i in range(gpu_count())]
        self._loaded = list(packed)
        for gpu in self._gpus:
            gpu.clear()
            for variant in dict.fromkeys(p.variant for p in packed):
                gpu.prepare(variant)
        for at, one in enumerate(packed):
            for g in one.lists:
                self._gpus[g].hold(at, one)

    def execute(self, which: int, tag: int) -> dict[int, dict[str, NDArray[Any]]]:
        """Execute one of the loaded schedules and return what each GPU wrote."""
        packed = self._loaded[which]
        parts = [self._gpus[g] for g in packed.lists]
        mail = np.array([g.mail for g in parts], dtype=np.uint64)
        for gpu in parts:
            gpu.reset(packed, mail)
        for gpu in parts:
            gpu.synchronize()  # every mailbox is empty before anybody writes to one
        for rank, gpu in enumerate(parts):
            other = self._gpus[packed.source if rank else packed.destination]
            gpu.start(which, packed, rank, other.window, tag + rank * 0x51ED270B & 0xFFFFFFFF)
        return {g: gpu.collect(packed) for g, gpu in zip(packed.lists, parts, strict=True)}


class _TaskGpu(CudaGpu):
    """One GPU: its kernels, the windows that it and its peers store to, the loaded schedules, and the buffers of one execution."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._kernels: dict[tasks.TaskVariant, LoadedKernel] = {}
        self._stream = self.new_stream()
        self.window, self._local = (self.room(self.sms * tasks.WINDOW_BYTES, fill=_POISON) for _ in range(2))  # peers store to the first
        self.mail = self.room(scene.MAIL.itemsize, "mailbox")
        self._schedules: dict[int, tuple[int, int]] = {}  # addresses of tasks and lists

    def clear(self) -> None:
        """Forget the loaded schedules."""
        for address in (a for both in self._schedules.values() for a in both):
            self.free(address)
        self._schedules.clear()

    def prepare(self, variant: tasks.TaskVariant) -> None:
        """Compile and load one variant; nothing happens when it is loaded already."""
        if variant not in self._kernels:
            shared, words = {"tasks": max(self.lone_bytes, variant.shared_bytes)}, (variant.defines(), variant.headers())
            self._kernels[variant] = self.load("tasks.cu", shared, *words, arch=variant.arch(self.arch), cooperative=True)["tasks"]

    def hold(self, which: int, packed: tasks.PackedTasks) -> None:
        """Copy one schedule in, and take the memory of what it writes."""
        self._schedules[which] = self.uploaded(packed.tasks), self.uploaded(packed.lists[self.index])
        for name, (length, dtype) in packed.results().items():
            self.room(length * dtype.itemsize, name)
        self.room(packed.events * tasks.EVENT_BYTES, "events")

    def reset(self, packed: tasks.PackedTasks, mail: NDArray[np.uint64]) -> None:
        """Clear what an execution counts in."""
        self.uploaded(mail, "mail")
        sizes = {"events": packed.events * tasks.EVENT_BYTES, "repetitions": scene.REPETITION.itemsize}
        for name, size in {**sizes, "mailbox": scene.MAIL.itemsize, "control": scene.SCENE_CONTROL.itemsize}.items():
            self.zeroed(size, name)

    def start(self, which: int, packed: tasks.PackedTasks, rank: int, remote: int, tag: int) -> None:
        """Start the kernel and return at once."""
        u32, u64, at = np.uint32, np.uint64, self.at
        listed, lists = self._schedules[which]
        arguments = (
            u64(listed), u64(lists), at("stamps"), at("seals"), at("events"),
            u64(remote), u64(self._local), u32(tasks.WINDOW_BYTES), u32(tag), at("repetitions"),
            at("control"), at("mail"), u32(rank), u32(len(packed.lists)),
            u64(_LEAD_NS), u64(_SPIN_TIMEOUT_NS + int(packed.expected_s * 1e9)),
        )  # fmt: skip
        threads = 32 * packed.warps * (1 + FORMS.index(packed.variant.form))
        self.launch(self._kernels[packed.variant], (self.sms,), threads, arguments, stream=self._stream.ptr)

    def collect(self, packed: tasks.PackedTasks) -> dict[str, NDArray[Any]]:
        """Wait for the kernel, whose own waits all end, and copy out what it wrote."""
        self._stream.synchronize()
        return {name: self.downloaded(name, dtype, length) for name, (length, dtype) in packed.results().items()}
