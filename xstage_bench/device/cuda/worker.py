"""The process that owns the CUDA contexts. It receives packed launches and returns what the kernels wrote, nothing else.

It is spawned, never forked, and killed by its parent when a launch outlives its deadline: a hung or faulted context takes this
process with it and no other. Between launch and join it only uses preallocated buffers, loaded kernels and asynchronous copies, since
anything else may compile, allocate or synchronise while a kernel spins.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from math import gcd
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda import layout
from xstage_bench.device.cuda.compile import compile_kernel, newly_compiled
from xstage_bench.device.cuda.copies_worker import Copies
from xstage_bench.device.cuda.debug import HANG_NS, planted, timeout_scale
from xstage_bench.device.cuda.host_memory import HostMemory
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
_WINDOW_BYTES = layout.MAX_PRODUCERS * layout.WINDOW_BYTES
_PLAIN = Variant(FLAVOURS["st.v4"])


def main(pipe: Connection) -> None:
    """Serve requests until the pipe closes. Ctrl-C belongs to the parent, which ends this process by closing the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # lazy loading while another kernel spins dead-locks
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
        from cupy.cuda import runtime

        self._gpus = [_Source(i) for i in range(runtime.getDeviceCount())]
        self._peers = [
            (a.index, b.index) for a in self._gpus for b in self._gpus if a is not b and runtime.deviceCanAccessPeer(a.index, b.index)
        ]
        for source, destination in self._peers:
            runtime.setDevice(source)
            try:
                runtime.deviceEnablePeerAccess(destination)
            except runtime.CUDARuntimeError as error:
                if "AlreadyEnabled" not in str(error):
                    raise
        self._flights: list[tuple[_Source, int, int]] = []
        self._next_slot = 0
        self._host: HostMemory | None = None

    def _window(self, destination: int) -> int:
        return self.host().address() if destination == HOST else self._gpus[destination].window()

    def host(self) -> HostMemory:
        """Pinned memory for stores over PCIe, allocated when first asked for."""
        self._host = self._host or HostMemory(_WINDOW_BYTES)
        return self._host

    def facts(self) -> dict[str, Any]:
        return {"gpus": [g.facts() for g in self._gpus], "pairs": self._peers, "timer_tick_ns": self._gpus[0].timer_tick_ns()}

    def prepare(self, kernels: list[tuple[Variant, bool]]) -> None:
        """Compile and load these variants, with stamps for every store or without, on every GPU; nothing runs meanwhile."""
        for gpu in self._gpus:
            for variant, timeline in kernels:
                gpu.prepare(variant, timeline)

    def verify(
        self, source: int, destination: int, variant: Variant, arrays: dict[str, NDArray[Any]], burst: dict[str, int]
    ) -> dict[str, int]:
        if destination == HOST:
            return self._verify_host(self._gpus[source], arrays, burst)
        return self._gpus[source].verify(self._gpus[destination], variant, arrays, burst)

    def _verify_host(self, gpu: _Source, arrays: dict[str, NDArray[Any]], burst: dict[str, int]) -> dict[str, int]:
        """Poison host memory, store one burst into it, and let the CPU check every byte."""
        self.host().poison(_POISON)
        gpu.launch(0, self.host().address(), arrays, burst["stamps"], 1.0, False)
        _, verdicts, _ = gpu.collect(0, burst["stamps"])
        shape = {k: burst[k] for k in ("producers", "warps", "stores", "tag")}
        return {"state": int(verdicts["state"][0]), **self.host().check(window_bytes=layout.WINDOW_BYTES, word=_POISON, **shape)}

    def launch(
        self,
        source: int,
        destination: int,
        variant: Variant,
        arrays: dict[str, NDArray[Any]],
        stamps: int,
        longest_s: float,
        timeline: bool,
    ) -> None:
        gpu = self._gpus[source]
        slot, self._next_slot = self._next_slot, self._next_slot ^ 1
        gpu.launch(slot, self._window(destination), arrays, stamps, longest_s, timeline, variant, planted(source, destination))
        self._flights.append((gpu, slot, stamps))

    def collect(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.uint32] | None]:
        gpu, slot, stamps = self._flights.pop(0)
        return gpu.collect(slot, stamps)


class _Source:
    """One GPU: its kernels, and two slots of buffers so that one launch runs while the one before it is read out."""

    def __init__(self, index: int) -> None:
        import cupy
        from cupy.cuda import runtime

        self.index = index
        self._folder = TemporaryDirectory(prefix="xstage-")
        self._cupy, self._runtime = cupy, runtime
        runtime.setDevice(index)
        self._properties = runtime.getDeviceProperties(index)
        self._sms = int(self._properties["multiProcessorCount"])
        self.arch = f"sm_{self._properties['major']}{self._properties['minor']}"
        # More than half of an SM's shared memory: a second CTA cannot join it.
        self._shared = int(self._properties["sharedMemPerMultiprocessor"]) // 2 + 1024
        verify = self._module(compile_kernel("verify.cu", self.arch))
        self.poison, self.check, self.untouched, self._tick, self._census = (
            _function(verify, f"xstage_{name}") for name in ("poison", "check", "untouched", "timer_tick", "census")
        )
        self._census.max_dynamic_shared_size_bytes = self._shared
        self._kernels: dict[tuple[Variant, bool], _Kernels] = {}
        for timeline in (False, True):
            self.prepare(_PLAIN, timeline)
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._window = runtime.malloc(_WINDOW_BYTES)
        self._slots = [_Buffers(cupy) for _ in range(2)]
        self._lines = runtime.malloc(self._sms * 16 * layout.TIMELINE_STORES * 4)
        self._smids = self._take_census()

    def prepare(self, variant: Variant, timeline: bool) -> None:
        """Compile and load one variant; nothing happens when it is loaded already."""
        if (variant, timeline) in self._kernels:
            return
        self._runtime.setDevice(self.index)
        shared = BULK_SHARED_BYTES if variant.flavour.bulk else max(self._shared, variant.shared_bytes(timeline=timeline))
        defines = {**variant.defines(), "XSTAGE_SHARED_BYTES": str(variant.shared_bytes(0, timeline=timeline))}
        if timeline:
            defines["XSTAGE_TIMELINE"] = "1"
        module = self._module(compile_kernel("burst.cu", self.arch, defines, variant.headers()))
        kernels = _Kernels(_function(module, "xstage_burst"), _function(module, "xstage_consume"), shared)
        kernels.burst.max_dynamic_shared_size_bytes = shared
        self._kernels[variant, timeline] = kernels

    def consume(self, variant: Variant) -> Any:
        """Return the kernel that checks what one burst of a variant left in this GPU's memory."""
        return self._kernels[variant, False].consume

    def _module(self, cubin: bytes) -> Any:
        path = Path(self._folder.name) / f"{hashlib.blake2b(cubin, digest_size=12).hexdigest()}.cubin"
        path.write_bytes(cubin)
        return self._cupy.RawModule(path=str(path), enable_cooperative_groups=True)

    def window(self) -> int:
        """Address of the memory that stores go to: plain cudaMalloc, since memory of an asynchronous pool is not covered by peer access."""
        return int(self._window)

    def facts(self) -> dict[str, Any]:
        p = self._properties
        raw = p["uuid"].hex() if isinstance(p["uuid"], bytes) else bytes(p["uuid"]).hex()
        clock = p.get("clockRate") or self._runtime.deviceGetAttribute(13, self.index)  # cudaDevAttrClockRate, kHz
        return {
            "arch": self.arch,
            "index": self.index,
            "name": p["name"].decode(),
            "uuid": f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:32]}",
            "pci_address": self._runtime.deviceGetPCIBusId(self.index).lower(),
            "smids": self._smids,
            "sm_clock_mhz": clock / 1e3,
        }

    def _take_census(self) -> list[int]:
        out = self._cupy.zeros(self._sms, dtype=self._cupy.uint32)
        self._census((self._sms,), (32,), (out,), shared_mem=self._shared)
        smids = sorted(int(x) for x in out.get())
        if len(set(smids)) != self._sms:
            raise RuntimeError(f"GPU {self.index}: {self._sms} CTAs ran on {len(set(smids))} SMs; one CTA per SM is needed")
        return smids

    def timer_tick_ns(self) -> float:
        """Greatest common divisor of the steps of %globaltimer."""
        self._runtime.setDevice(self.index)
        out = self._cupy.zeros(256, dtype=self._cupy.uint64)
        self._tick((1,), (1,), (out, np.uint32(256), np.uint32(1 << 16)))
        steps = np.diff(out.get().astype(np.int64))
        return float(gcd(*(int(s) for s in steps))) if steps.any() else 0.0

    def launch(
        self,
        slot: int,
        destination: int,
        arrays: dict[str, NDArray[Any]],
        stamps: int,
        longest_s: float,
        timeline: bool,
        variant: Variant = _PLAIN,
        fault: str | None = None,
    ) -> None:
        self._runtime.setDevice(self.index)
        b = self._slots[slot]
        tensor = variant.flavour.kind == "tensor"
        if tensor:
            arrays = {**arrays, "tensor_map": encode_tensor_map(destination, _WINDOW_BYTES, variant)}
        b.fill(self._runtime, self._stream.ptr, arrays, arrived=_NEVER if fault in ("wait", "hang") else 0)
        spin_ns = HANG_NS if fault == "hang" else int(_SPIN_TIMEOUT_NS * timeout_scale()) + int(longest_s * 1e9)
        u32, u64 = np.uint32, np.uint64
        block = {name: u64(b.device + at) for name, at in b.at.items()}
        arguments = (
            block["items"],
            u32(len(arrays["items"])),
            block["bursts"],
            block["producer_of"],
            u32(arrays["producer_of"].shape[1]),
            u64(destination),
            u32(layout.WINDOW_BYTES),
            u64(b.stamps),
            block["verdicts"],
            u64(self._lines),
            block["control"],
            u32(_LEAD_NS),
            u64(spin_ns),
            *((block["tensor_map"],) if tensor else ()),
        )
        with self._stream:
            kernels = self._kernels[variant, timeline]
            kernels.burst((self._sms,), (_THREADS,), arguments, shared_mem=kernels.shared)
        b.timeline = timeline
        b.read(self._runtime, self._stream.ptr, stamps)
        b.done.record(self._stream)

    def collect(self, slot: int, stamps: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.uint32] | None]:
        b = self._slots[slot]
        b.done.synchronize()
        lines = None
        if b.timeline:
            lines = np.empty((self._sms, 16, layout.TIMELINE_STORES), np.uint32)
            self._runtime.memcpy(lines.ctypes.data, self._lines, lines.nbytes, self._runtime.memcpyDeviceToHost)
        return b.host_stamps[:stamps].copy(), b.host_verdicts().copy(), lines

    def verify(self, destination: _Source, variant: Variant, arrays: dict[str, NDArray[Any]], burst: dict[str, int]) -> dict[str, int]:
        """Poison the destination, store one burst, and let the destination GPU check every byte of its own memory."""
        count = np.uint64(_WINDOW_BYTES // 16)
        grid, block = (self._sms * 4,), (256,)
        word = np.uint32(0 if variant.flavour.reduces else _POISON)  # a sum starts at zero
        self._runtime.setDevice(destination.index)
        destination.poison(grid, block, (np.uint64(destination.window()), count, word))
        self._runtime.deviceSynchronize()
        fault = planted(self.index, destination.index)
        self.launch(0, destination.window(), arrays, burst["stamps"], 1.0, False, variant, fault)
        _, verdicts, _ = self.collect(0, burst["stamps"])
        self._runtime.setDevice(destination.index)
        if fault == "corrupt":
            self._runtime.memset(destination.window() + _CORRUPT_AT, 0x5A, 4)
        finding = self._cupy.zeros(layout.FINDING.itemsize, dtype=self._cupy.uint8)
        shape = tuple(np.uint32(burst[k]) for k in ("producers", "warps", "stores", "tag"))
        window = np.uint64(destination.window())
        destination.consume(variant)(grid, block, (window, np.uint32(layout.WINDOW_BYTES), *shape, word, finding))
        destination.untouched(grid, block, (window, count, word, finding))
        found = finding.get().view(layout.FINDING)[0]
        return {"state": int(verdicts["state"][0]), **{name: int(found[name]) for name in layout.FINDING.names or ()}}


class _Kernels(NamedTuple):
    """One variant on one GPU: the instrument, the check on the destination, and the shared memory of a CTA."""

    burst: Any
    consume: Any
    shared: int


def _function(module: Any, name: str) -> Any:
    function = module.get_function(name)
    assert function.kernel is not None  # loads it now: CuPy would wait until the first launch, when something else may spin
    return function


class _Buffers:
    """Preallocated memory of one launch: one block that goes in (and whose verdicts come back), and the stamps."""

    def __init__(self, cupy: Any) -> None:
        runtime = cupy.cuda.runtime
        sizes = {
            "control": layout.CONTROL.itemsize,
            "verdicts": (layout.MAX_ITEMS + 1) * layout.VERDICT.itemsize,
            "items": layout.MAX_ITEMS * layout.ITEM.itemsize,
            "bursts": layout.MAX_BURSTS * layout.BURST.itemsize,
            "producer_of": layout.MAX_SETS * layout.MAX_PRODUCERS * 2,
            "tensor_map": TENSOR_MAP_BYTES,
        }
        self.at: dict[str, int] = {}
        total = 0
        for name, size in sizes.items():
            self.at[name] = total
            total += -(-size // 256) * 256
        self.device = runtime.malloc(total)
        self.stamps = runtime.malloc(layout.MAX_STAMPS * layout.STAMP.itemsize)
        self._pinned = cupy.cuda.alloc_pinned_memory(total)
        self._host = np.frombuffer(self._pinned, dtype=np.uint8, count=total)
        self._pinned_stamps = cupy.cuda.alloc_pinned_memory(layout.MAX_STAMPS * layout.STAMP.itemsize)
        self.host_stamps = np.frombuffer(self._pinned_stamps, dtype=layout.STAMP, count=layout.MAX_STAMPS)
        self.done = cupy.cuda.Event(disable_timing=True)
        self.timeline = False
        self._items = 0

    def fill(self, runtime: Any, stream: int, arrays: dict[str, NDArray[Any]], *, arrived: int = 0) -> None:
        self._items = len(arrays["items"])
        self._host[: self.at["items"]] = 0  # control and verdicts
        control = self._host[self.at["control"] :][: layout.CONTROL.itemsize].view(layout.CONTROL)
        control["arrived"] = arrived
        for name, array in arrays.items():
            raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self._host[self.at[name] : self.at[name] + raw.size] = raw
        runtime.memcpyAsync(self.device, self._host.ctypes.data, self._host.size, runtime.memcpyHostToDevice, stream)

    def read(self, runtime: Any, stream: int, stamps: int) -> None:
        size = (self._items + 1) * layout.VERDICT.itemsize
        at = self.at["verdicts"]
        runtime.memcpyAsync(self._host.ctypes.data + at, self.device + at, size, runtime.memcpyDeviceToHost, stream)
        if stamps:
            runtime.memcpyAsync(
                self.host_stamps.ctypes.data, self.stamps, stamps * layout.STAMP.itemsize, runtime.memcpyDeviceToHost, stream
            )

    def host_verdicts(self) -> NDArray[Any]:
        at = self.at["verdicts"]
        return self._host[at : at + (self._items + 1) * layout.VERDICT.itemsize].view(layout.VERDICT)


Source = _Source  # one GPU of this process, for destinations that other processes own (processes.py)
