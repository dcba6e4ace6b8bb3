"""Inside the worker process: launches the three kernels of ``cuda/visibility.cu`` at once and returns what they wrote.

The kernels are loaded on both GPUs, and all memory is taken, before the first of them starts. Launched through the driver, because the
memory synchronisation domain is an attribute of a launch that CuPy's own cannot set.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.compile import compile_kernel
from xstage_bench.device.cuda.tensor_map import encode_tensor_map
from xstage_bench.device.cuda.variant import Variant

_NAMES = ("produce", "respond", "probe")
_THREADS = {"produce": 512, "respond": 1024, "probe": 1024}


class Visibility:
    """The kernels and buffers of each GPU, made when they are first asked for. Peer access is the caller's business."""

    def __init__(self) -> None:
        self._gpus: dict[int, _Gpu] = {}

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
            if index not in self._gpus:
                self._gpus[index] = _Gpu(index)
        here, there = self._gpus[source], self._gpus[destination]
        plan, variant = packed["plan"], packed["variant"]
        for gpu in (here, there):
            gpu.load(variant, packed["warps"])
        if variant is not None and variant.flavour.reduces:  # sums start at zero; the kernel zeroes them again after each repetition
            there.zeroed("data", data_bytes)
        plan["data"], plan["destination_box"] = there.data(data_bytes), there.zeroed("destination_box", destination_box_bytes)
        homes = {name: there if name == "found" else here for name in shapes}
        for name, (shape, dtype) in shapes.items():
            plan[name] = homes[name].zeroed(name, max(int(np.prod(shape)) * dtype.itemsize, 16))
        for name in ("producer_of", "delays"):
            plan[name] = here.uploaded(name, packed[name])
        if variant is not None and variant.flavour.kind == "tensor":
            plan["tensor_map"] = here.uploaded("tensor_map", encode_tensor_map(int(plan["data"][0]), data_bytes, variant))
        domains = packed["domains"]
        here.launch("produce", plan, here.sms, domain="prober" if domains == "producers" else "same")
        there.launch("respond", plan, 1)
        here.launch("probe", plan, 1, domain=domains if domains != "producers" else "same", beside=packed["beside"])
        here.join()
        there.join()
        return {name: homes[name].downloaded(name, shape, dtype) for name, (shape, dtype) in shapes.items()}


class _Gpu:
    def __init__(self, index: int) -> None:
        import cupy
        from cuda.bindings import driver
        from cupy.cuda import runtime

        self.index, self._runtime, self._driver = index, runtime, driver
        runtime.setDevice(index)
        properties = runtime.getDeviceProperties(index)
        self.sms = int(properties["multiProcessorCount"])
        # More than half of an SM's shared memory: no two of the three kernels' blocks share an SM.
        self._half = self._shared = int(properties["sharedMemPerMultiprocessor"]) // 2 + 1024
        self._arch = f"sm_{properties['major']}{properties['minor']}"
        self._loaded: dict[Variant | None, dict[str, Any]] = {}
        self._functions: dict[str, Any] = {}
        self._streams = {name: cupy.cuda.Stream(non_blocking=True) for name in _NAMES}
        self._memory: dict[str, tuple[int, int]] = {}

    def load(self, variant: Variant | None, warps: int) -> None:
        """Make a variant's kernels (None: the plain burst that stamps its groups) those that `launch` starts."""
        driver = self._driver
        self._runtime.setDevice(self.index)
        self._shared = self._half if variant is None else max(self._half, variant.shared_bytes(warps))
        if variant not in self._loaded:
            defines = {} if variant is None else {**variant.defines(), "XSTAGE_WHOLE_BURST": "1"}
            cubin = compile_kernel("visibility.cu", self._arch, defines, {} if variant is None else variant.headers())
            module = self._call(driver.cuModuleLoadData(cubin))
            self._loaded[variant] = {n: self._call(driver.cuModuleGetFunction(module, f"xstage_vis_{n}".encode())) for n in _NAMES}
        self._functions = self._loaded[variant]
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        for function in self._functions.values():
            self._call(driver.cuFuncSetAttribute(function, limit, self._shared))

    def _call(self, result: tuple[Any, ...]) -> Any:
        if result[0] != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"GPU {self.index}: {result[0].name}")
        return result[1] if len(result) == 2 else None

    def _room(self, name: str, size: int) -> int:
        """Memory of this name, at least so large; plain allocations, which peers may map."""
        at, have = self._memory.get(name, (0, 0))
        if have < size:
            self._runtime.setDevice(self.index)
            if at:
                self._runtime.free(at)
            at = int(self._runtime.malloc(size))
            self._memory[name] = (at, size)
        return at

    def data(self, size: int) -> int:
        return self._room("data", size)

    def zeroed(self, name: str, size: int) -> int:
        at = self._room(name, size)
        self._runtime.setDevice(self.index)
        self._runtime.memset(at, 0, size)
        self._runtime.deviceSynchronize()
        return at

    def uploaded(self, name: str, array: NDArray[Any]) -> int:
        at = self._room(name, array.nbytes)
        self._runtime.setDevice(self.index)
        self._runtime.memcpy(at, array.ctypes.data, array.nbytes, self._runtime.memcpyHostToDevice)
        return at

    def downloaded(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        out = np.zeros(shape, dtype)
        if out.nbytes:
            self._runtime.setDevice(self.index)
            self._runtime.memcpy(out.ctypes.data, self._memory[name][0], out.nbytes, self._runtime.memcpyDeviceToHost)
        return out

    def launch(self, name: str, plan: NDArray[Any], blocks: int, *, domain: str = "same", beside: bool = False) -> None:
        driver = self._driver
        self._runtime.setDevice(self.index)
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = blocks, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = 32 if beside else _THREADS[name], 1, 1
        config.sharedMemBytes = 0 if beside else self._shared
        config.hStream = driver.CUstream(self._streams[name].ptr)
        config.numAttrs = 0
        if domain != "same":
            attribute, value = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
            if domain == "prober":
                attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN
                value.memSyncDomain = driver.CUlaunchMemSyncDomain.CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE
            else:
                attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP
                value.memSyncDomainMap.default_, value.memSyncDomainMap.remote = 2, 3
            attribute.value = value
            config.attrs, config.numAttrs = [attribute], 1
        arguments = np.array([plan.ctypes.data], dtype=np.uint64)  # void **: one parameter, the whole struct
        self._call(driver.cuLaunchKernelEx(config, self._functions[name], int(arguments.ctypes.data), 0))

    def join(self) -> None:
        self._runtime.setDevice(self.index)
        for stream in self._streams.values():
            stream.synchronize()
