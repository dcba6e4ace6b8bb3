"""The process that owns the CUDA contexts. It receives packed launches and returns what the kernels wrote, nothing else.

It is spawned, never forked, and killed by its parent when a launch outlives its deadline: a hung or faulted context takes this
process with it and no other. Between launch and join it only uses preallocated buffers, loaded kernels and asynchronous copies, since
anything else may compile, allocate or synchronise while a kernel spins.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from itertools import accumulate
from math import gcd
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda import layout
from xstage_bench.device.cuda.compile import newly_compiled
from xstage_bench.device.cuda.copies_worker import Copies
from xstage_bench.device.cuda.debug import HANG_NS, planted, timeout_scale
from xstage_bench.device.cuda.footprint import Footprints
from xstage_bench.device.cuda.gpu import CudaGpu, LoadedKernel, gpu_count, load_eagerly, pinned
from xstage_bench.device.cuda.host_memory import HostMemory
from xstage_bench.device.cuda.pulls import Pulls
from xstage_bench.device.cuda.scene_worker import SceneWorker
from xstage_bench.device.cuda.tasks_worker import TaskWorker
from xstage_bench.device.cuda.tensor_map import TENSOR_MAP_BYTES, encode_tensor_map
from xstage_bench.device.cuda.variant import BULK_SHARED_BYTES, Variant
from xstage_bench.device.cuda.visibility_worker import Visibility
from xstage_bench.schedule.bursts import HOST
from xstage_bench.schedule.flavour import FLAVOURS

_THREADS = 512
_LEAD_NS = 3000  # from the last arrival at the barrier to the common start: enough for its release to reach every SM
_SPIN_TIMEOUT_NS = 3_000_000_000
_POISON = 0xA5A5A5A5
_NEVER = 1 << 30  # CTAs counted at the barrier before any came: with the planted faults wait and hang nobody is the last
_CORRUPT_AT = 4096  # where the planted fault corrupt leaves a wrong word
WINDOWS_BYTES = layout.MAX_PRODUCERS * layout.WINDOW_BYTES
_COUNT = np.uint64(WINDOWS_BYTES // 16)  # words of the checks
Arrays = dict[str, NDArray[Any]]
BurstKernel = tuple[Variant, bool]  # and whether it stamps every store
_PLAIN: BurstKernel = (Variant(FLAVOURS["st.v4"]), False)


def main(pipe: Connection) -> None:
    """Serve requests until the pipe closes. Ctrl-C belongs to the parent, which ends this process by closing the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load_eagerly()
    try:
        node = _Node()
        pipe.send(("ok", node.facts(), newly_compiled()))
    except Exception as error:
        pipe.send(("error", f"{type(error).__name__}: {error}"))
        return
    handlers: dict[str, Callable[..., Any]] = {"verify": node.verify, "launch": node.launch, "collect": node.collect}
    handlers["prepare"] = node.prepare
    handlers["scene"] = SceneWorker().run
    replay = TaskWorker()
    handlers |= {"tasks_load": replay.load, "tasks_execute": replay.execute}
    handlers["visibility"] = Visibility().watch  # three kernels at once, with buffers of their own
    handlers["copy"] = Copies().copy
    footprints = Footprints()
    handlers |= {"deal": footprints.execute, "verify_deal": footprints.verify}
    pulls = Pulls()
    handlers |= {"pull": pulls.execute, "pull_fill": pulls.fill}
    while True:
        try:
            name, *arguments = pipe.recv()
        except (EOFError, OSError):
            return
        try:
            pipe.send(("ok", handlers[name](*arguments), newly_compiled()))
        except Exception as error:  # reported to the parent, which decides; a sticky CUDA error makes every later call fail too
            pipe.send(("error", f"{type(error).__name__}: {error}"))


class _Node:
    """All GPUs that this process can see, with their kernels loaded before anything spins."""

    def __init__(self) -> None:
        self._gpus = [BurstGpu(i) for i in range(gpu_count())]
        self._peers = [(a.index, b.index) for a in self._gpus for b in self._gpus if a is not b and a.reaches(b.index)]
        for source, destination in self._peers:
            self._gpus[source].reach((destination,))
        self._flights: list[tuple[BurstGpu, int, int]] = []
        self._next_slot = 0
        self._host: HostMemory | None = None

    def _window(self, destination: int) -> int:
        return self.host().address() if destination == HOST else self._gpus[destination].window

    def host(self) -> HostMemory:
        """Pinned memory for stores over PCIe, allocated when first asked for."""
        self._host = self._host or HostMemory(WINDOWS_BYTES)
        return self._host

    def facts(self) -> dict[str, Any]:
        return {"gpus": [g.facts() for g in self._gpus], "pairs": self._peers, "timer_tick_ns": self._gpus[0].timer_tick_ns()}

    def prepare(self, kernels: list[BurstKernel]) -> None:
        """Compile and load these variants, with stamps for every store or without, on every GPU; nothing runs meanwhile."""
        for gpu in self._gpus:
            for variant, timeline in kernels:
                gpu.prepare(variant, timeline)

    def verify(self, source: int, destination: int, variant: Variant, arrays: Arrays, burst: dict[str, int]) -> dict[str, int]:
        if destination == HOST:
            return self._verify_host(self._gpus[source], arrays, burst)
        return self._gpus[source].verify(self._gpus[destination], variant, arrays, burst)

    def _verify_host(self, gpu: BurstGpu, arrays: Arrays, burst: dict[str, int]) -> dict[str, int]:
        """Poison host memory, store one burst into it, and let the CPU check every byte."""
        self.host().poison(_POISON)
        gpu.start(0, self.host().address(), arrays, burst["stamps"], 1.0)
        _, verdicts, _ = gpu.collect(0, burst["stamps"])
        shape = {k: burst[k] for k in ("producers", "warps", "stores", "tag")}
        return {"state": int(verdicts["state"][0]), **self.host().check(window_bytes=layout.WINDOW_BYTES, word=_POISON, **shape)}

    def launch(
        self, source: int, destination: int, variant: Variant, arrays: Arrays, stamps: int, longest_s: float, timeline: bool
    ) -> None:
        gpu = self._gpus[source]
        slot, self._next_slot = self._next_slot, self._next_slot ^ 1
        gpu.start(slot, self._window(destination), arrays, stamps, longest_s, (variant, timeline), planted(source, destination))
        self._flights.append((gpu, slot, stamps))

    def collect(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.uint32] | None]:
        gpu, slot, stamps = self._flights.pop(0)
        return gpu.collect(slot, stamps)


class BurstGpu(CudaGpu):
    """One GPU: its kernels, and two slots of buffers so that one launch runs while the one before it is read out."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        names = ("poison", "check", "untouched", "timer_tick", "census")
        shared = {name: self.lone_bytes if name == "census" else 0 for name in names}
        self._verify = self.load("verify.cu", shared, cooperative=True)
        self._kernels: dict[BurstKernel, dict[str, LoadedKernel]] = {}
        for timeline in (False, True):
            self.prepare(_PLAIN[0], timeline)
        self._stream = self.new_stream()
        self.window = self.room(WINDOWS_BYTES)
        self._slots = [_Slot(self) for _ in range(2)]
        self._lines = self.room(self.sms * 16 * layout.TIMELINE_STORES * 4)
        self.smids = self._take_census()

    def prepare(self, variant: Variant, timeline: bool) -> None:
        """Compile and load one variant; nothing happens when it is loaded already."""
        if (variant, timeline) in self._kernels:
            return
        shared = BULK_SHARED_BYTES if variant.flavour.bulk else max(self.lone_bytes, variant.shared_bytes(timeline=timeline))
        defines = {**variant.defines(), "XSTAGE_SHARED_BYTES": str(variant.shared_bytes(0, timeline=timeline))}
        if timeline:
            defines["XSTAGE_TIMELINE"] = "1"
        names = {"burst": shared, "consume": 0}
        self._kernels[variant, timeline] = self.load("burst.cu", names, defines, variant.headers(), cooperative=True)

    def facts(self) -> dict[str, Any]:
        """Return what a `Gpu` says, and the architecture."""
        return {name: getattr(self, name) for name in ("arch", "index", "name", "uuid", "pci_address", "smids", "sm_clock_mhz")}

    def _take_census(self) -> list[int]:
        self.launch(self._verify["census"], (self.sms,), 32, (np.uint64(self.zeroed(4 * self.sms, "census")),))
        smids = sorted(int(x) for x in self.downloaded("census", np.uint32, self.sms))
        if len(set(smids)) != self.sms:
            raise RuntimeError(f"GPU {self.index}: {self.sms} CTAs ran on {len(set(smids))} SMs; one CTA per SM is needed")
        return smids

    def timer_tick_ns(self) -> float:
        """Greatest common divisor of the steps of %globaltimer."""
        out = self.zeroed(256 * 8, "ticks")
        self.launch(self._verify["timer_tick"], (1,), 1, (np.uint64(out), np.uint32(256), np.uint32(1 << 16)))
        steps = np.diff(self.downloaded("ticks", np.int64, 256))
        return float(gcd(*(int(s) for s in steps))) if steps.any() else 0.0

    def start(
        self, slot: int, to: int, arrays: Arrays, stamps: int, longest_s: float, kernel: BurstKernel = _PLAIN, fault: str | None = None
    ) -> None:
        """Launch a batch of bursts with the buffers of a slot, and queue the way back of what it writes."""
        b = self._slots[slot]
        if tensor := kernel[0].flavour.kind == "tensor":
            arrays = {**arrays, "tensor_map": encode_tensor_map(to, WINDOWS_BYTES, kernel[0])}
        b.fill(self._stream.ptr, arrays, arrived=_NEVER if fault in ("wait", "hang") else 0)
        spin_ns = HANG_NS if fault == "hang" else int(_SPIN_TIMEOUT_NS * timeout_scale()) + int(longest_s * 1e9)
        u32, u64 = np.uint32, np.uint64
        block = {name: u64(b.device + at) for name, at in b.at.items()}
        arguments = (
            block["items"], u32(len(arrays["items"])), block["bursts"], block["producer_of"], u32(arrays["producer_of"].shape[1]),
            u64(to), u32(layout.WINDOW_BYTES), u64(b.stamps), block["verdicts"], u64(self._lines), block["control"],
            u32(_LEAD_NS), u64(spin_ns), *((block["tensor_map"],) if tensor else ()),
        )  # fmt: skip
        self.launch(self._kernels[kernel]["burst"], (self.sms,), _THREADS, arguments, stream=self._stream.ptr)
        b.timeline = kernel[1]
        b.read(self._stream.ptr, stamps)
        b.done.record(self._stream)

    def collect(self, slot: int, stamps: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.uint32] | None]:
        """Wait for the launch of a slot; its stamps, verdicts and, where it had one, time line."""
        b = self._slots[slot]
        b.done.synchronize()
        lines = self.downloaded(self._lines, np.uint32, (self.sms, 16, layout.TIMELINE_STORES)) if b.timeline else None
        return b.host_stamps[:stamps].copy(), b.host_verdicts().copy(), lines

    def poison(self, address: int, word: int = _POISON) -> None:
        """Fill windows on this GPU, and wait."""
        self._everywhere(self._verify["poison"], address, _COUNT, np.uint32(word))
        self.synchronize()

    def verify(self, destination: BurstGpu, variant: Variant, arrays: Arrays, burst: dict[str, int]) -> dict[str, int]:
        """Poison the destination, store one burst, and let the destination GPU check every byte of its own memory."""
        word = 0 if variant.flavour.reduces else _POISON  # a sum starts at zero
        destination.poison(destination.window, word)
        fault = planted(self.index, destination.index)
        self.start(0, destination.window, arrays, burst["stamps"], 1.0, (variant, False), fault)
        _, verdicts, _ = self.collect(0, burst["stamps"])
        if fault == "corrupt":
            destination.fill(destination.window + _CORRUPT_AT, 0x5A, 4)
        return {"state": int(verdicts["state"][0]), **destination.consume(variant, burst, word)}

    def consume(self, variant: Variant, burst: dict[str, int], word: int) -> dict[str, int]:
        """Check what one burst of a variant left in this GPU's window, and that it left everything else as it was."""
        finding = np.uint64(self.zeroed(layout.FINDING.itemsize, "finding"))
        self._everywhere(self._kernels[variant, False]["consume"], self.window, *_shape(burst), np.uint32(word), finding)
        self._everywhere(self._verify["untouched"], self.window, _COUNT, np.uint32(word), finding)
        return self._found()

    def check(self, address: int, burst: dict[str, int]) -> dict[str, int]:
        """Check every byte of windows on this GPU after one burst (``producers``, ``warps``, ``stores``, ``tag``) into poison."""
        finding = np.uint64(self.zeroed(layout.FINDING.itemsize, "finding"))
        self._everywhere(self._verify["check"], address, _COUNT, *_shape(burst), np.uint32(_POISON), finding)
        return self._found()

    def _everywhere(self, kernel: LoadedKernel, address: int, *arguments: np.generic) -> None:
        self.launch(kernel, (self.sms * 4,), 256, (np.uint64(address), *arguments))

    def _found(self) -> dict[str, int]:
        found = self.downloaded("finding", layout.FINDING)[0]
        return {name: int(found[name]) for name in layout.FINDING.names or ()}


def _shape(burst: dict[str, int]) -> list[np.uint32]:
    return [np.uint32(n) for n in (layout.WINDOW_BYTES, *(burst[name] for name in ("producers", "warps", "stores", "tag")))]


class _Slot:
    """Preallocated memory of one launch: one block that goes in (and whose verdicts come back), and the stamps."""

    def __init__(self, gpu: CudaGpu) -> None:
        sizes = {
            "control": layout.CONTROL.itemsize,
            "verdicts": (layout.MAX_ITEMS + 1) * layout.VERDICT.itemsize,
            "items": layout.MAX_ITEMS * layout.ITEM.itemsize,
            "bursts": layout.MAX_BURSTS * layout.BURST.itemsize,
            "producer_of": layout.MAX_SETS * layout.MAX_PRODUCERS * 2,
            "tensor_map": TENSOR_MAP_BYTES,
        }
        *starts, total = accumulate((-(-size // 256) * 256 for size in sizes.values()), initial=0)
        self.at, self._gpu = dict(zip(sizes, starts, strict=True)), gpu
        self.device, self._host = gpu.room(total), pinned(total, np.uint8)
        self.stamps = gpu.room(layout.MAX_STAMPS * layout.STAMP.itemsize)
        self.host_stamps = pinned(layout.MAX_STAMPS, layout.STAMP)
        self.done = gpu.new_event(timed=False)
        self.timeline = False
        self._items = 0

    def fill(self, stream: int, arrays: Arrays, *, arrived: int = 0) -> None:
        self._items = len(arrays["items"])
        self._host[: self.at["items"]] = 0  # control and verdicts
        control = self._host[self.at["control"] :][: layout.CONTROL.itemsize].view(layout.CONTROL)
        control["arrived"] = arrived
        for name, array in arrays.items():
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self._host[self.at[name] : self.at[name] + raw.size] = raw
        self._gpu.copy(self.device, self._host.ctypes.data, self._host.size, "HostToDevice", stream)

    def read(self, stream: int, stamps: int) -> None:
        verdicts = self.host_verdicts()
        self._gpu.copy(verdicts.ctypes.data, self.device + self.at["verdicts"], verdicts.nbytes, "DeviceToHost", stream)
        if stamps:
            self._gpu.copy(self.host_stamps.ctypes.data, self.stamps, stamps * layout.STAMP.itemsize, "DeviceToHost", stream)

    def host_verdicts(self) -> NDArray[Any]:
        at = self.at["verdicts"]
        return self._host[at : at + (self._items + 1) * layout.VERDICT.itemsize].view(layout.VERDICT)
