"""Inside the worker process: launches the three kernels of ``cuda/visibility.cu`` at once and returns what they wrote.

The kernels are loaded on both GPUs, and all memory is taken, before the first of them starts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.gpu import CudaGpu, Domain, LoadedKernel
from xstage_bench.device.cuda.tensor_map import encode_tensor_map
from xstage_bench.device.cuda.variant import Variant

_THREADS = {"produce": 512, "respond": 1024, "probe": 1024}
#: Memory synchronisation domains of the producers' launch and of the prober's, by a watch's ``domains``.
_DOMAINS: dict[str, tuple[Domain, Domain]] = {
    "same": ("same", "same"),
    "prober": ("same", "remote"),
    "prober.mapped": ("same", "mapped"),
    "producers": ("remote", "same"),
}


class Visibility:
    """The kernels and buffers of each GPU, made when they are first asked for. Peer access is the caller's business."""

    def __init__(self) -> None:
        self._gpus: dict[int, _WatchGpu] = {}

    def watch(
        self,
        source: int,
        destination: int,
        packed: dict[str, Any],
        shapes: dict[str, tuple[tuple[int, ...], np.dtype[Any]]],
        data_bytes: int,
        destination_box_bytes: int,
    ) -> dict[str, NDArray[Any]]:
        """Run one watch to its end; every wait in the kernels has a time-out."""
        for index in (source, destination):
            self._gpus[index] = self._gpus.get(index) or _WatchGpu(index)
        here, there = self._gpus[source], self._gpus[destination]
        plan, variant = packed["plan"], packed["variant"]
        for gpu in (here, there):
            gpu.prepare(variant, packed["warps"])
        if variant is not None and variant.flavour.reduces:  # sums start at zero; the kernel zeroes them again after each repetition
            there.zeroed(data_bytes, "data")
        plan["data"], plan["destination_box"] = there.room(data_bytes, "data"), there.zeroed(destination_box_bytes, "destination_box")
        homes = {name: there if name == "found" else here for name in shapes}
        for name, (shape, dtype) in shapes.items():
            plan[name] = homes[name].zeroed(int(np.prod(shape)) * dtype.itemsize, name)
        for name in ("producer_of", "delays"):
            plan[name] = here.uploaded(packed[name], name)
        if variant is not None and variant.flavour.kind == "tensor":
            plan["tensor_map"] = here.uploaded(encode_tensor_map(int(plan["data"][0]), data_bytes, variant), "tensor_map")
        producers, prober = _DOMAINS[packed["domains"]]
        here.start("produce", plan, here.sms, domain=producers)
        there.start("respond", plan, 1)
        here.start("probe", plan, 1, domain=prober, beside=packed["beside"])
        here.join()
        there.join()
        return {name: homes[name].downloaded(name, dtype, shape) for name, (shape, dtype) in shapes.items()}


class _WatchGpu(CudaGpu):
    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._loaded: dict[tuple[Variant | None, int], dict[str, LoadedKernel]] = {}
        self._kernels: dict[str, LoadedKernel] = {}
        self._streams = {name: self.new_stream() for name in _THREADS}

    def prepare(self, variant: Variant | None, warps: int) -> None:
        """Make a variant's kernels (None: the plain burst that stamps its groups) those that `start` starts."""
        # More than half of an SM's shared memory: no two of the three kernels' blocks share an SM.
        shared = self.lone_bytes if variant is None else max(self.lone_bytes, variant.shared_bytes(warps))
        if (variant, shared) not in self._loaded:
            words = ({}, {}) if variant is None else ({**variant.defines(), "XSTAGE_WHOLE_BURST": "1"}, variant.headers())
            self._loaded[variant, shared] = self.load("visibility.cu", {f"vis_{name}": shared for name in _THREADS}, *words)
        self._kernels = self._loaded[variant, shared]

    def start(self, name: str, plan: NDArray[Any], blocks: int, *, domain: Domain = "same", beside: bool = False) -> None:
        kernel, stream = self._kernels[f"vis_{name}"], self._streams[name].ptr
        shared, threads = (0, 32) if beside else (kernel.shared_bytes, _THREADS[name])
        self.launch(kernel, (blocks,), threads, (plan,), stream=stream, shared_bytes=shared, domain=domain)

    def join(self) -> None:
        for stream in self._streams.values():
            stream.synchronize()
