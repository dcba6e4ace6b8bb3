"""CUDA without a GPU: cupy's runtime, streams and events, and the driver's calls, over this process's own memory.

Addresses are real, so copies copy, and a copy beyond an allocation fails the test. Structs of a launch are those of cuda.bindings, and its
arguments must be as many and as large as the parameters of the kernel in ``cuda/``; what a kernel does is up to the test
(`FakeCuda.kernels`, by name). Everything asked of the driver stands in `FakeCuda.log`, in order.
"""

# ruff: noqa: N802, N815
from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from xstage_bench.device.cuda.gpu import CudaGpu
from xstage_bench.io.assets import asset_dir

SHARED_BYTES = 233472  # per SM, of an H200


class CUDARuntimeError(Exception):
    pass


@dataclass(frozen=True)
class Launch:
    """One launch as the driver got it."""

    kernel: str
    gpu: int
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    stream: int
    attributes: dict[str, Any]
    parameters: tuple[bytes, ...]

    def parameter(self, number: int, dtype: Any) -> Any:
        """What the kernel reads of one parameter."""
        return np.frombuffer(self.parameters[number], dtype)[0]

    def read(self, number: int, dtype: Any) -> Any:
        """What the kernel reads where a parameter points."""
        return np.frombuffer(ctypes.string_at(int(self.parameter(number, "<u8")), np.dtype(dtype).itemsize), dtype)[0]

    def write(self, number: int, array: np.ndarray[Any, Any]) -> None:
        """What the kernel writes to where a parameter points."""
        ctypes.memmove(int(self.parameter(number, "<u8")), array.ctypes.data, array.nbytes)


@cache
def sizes_of(kernel: str) -> list[int | None] | None:
    """Bytes of each parameter of a kernel of ``cuda/``, None for a struct; None where there is no such kernel."""
    for path in asset_dir("cuda").glob("*.cu*"):
        if found := re.search(rf"__global__[^;{{]*?\b{kernel}\(([^{{]*?)\)\s*\{{", path.read_text()):
            text = re.sub(r"^#.*$", "", found.group(1), flags=re.MULTILINE)
            kinds = {"*": 8, "u64 ": 8, "u32 ": 4}
            return [next((size for kind, size in kinds.items() if kind in one), None) for one in text.split(",")]
    return None


@dataclass
class FakeCuda:
    gpus: int = 2
    sms: int = 24
    capability: tuple[int, int] = (9, 0)
    peers: bool = True
    log: list[tuple[Any, ...]] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    kernels: dict[str, Callable[[Launch], None]] = field(default_factory=dict)
    current: int = 0

    def __post_init__(self) -> None:
        self.memory: dict[int, tuple[int, Any]] = {}
        self.reached: set[tuple[int, int]] = set()
        self.functions: dict[int, str] = {}
        self.sizes: list[int] = []
        self.kernels["xstage_census"] = self._census

    def did(self, *names: str) -> list[tuple[Any, ...]]:
        """The entries of these kinds, in order."""
        return [entry for entry in self.log if entry[0] in names]

    def in_flight(self) -> set[str]:
        """What was asked for between the first launch since the last `clear` of the log and the first wait after the last one."""
        names = [entry[0] for entry in self.log]
        first, last = names.index("launch"), max(i for i, name in enumerate(names) if name == "launch")
        return set(names[first : next(i for i in range(last, len(names)) if "synchronize" in names[i])])

    def _census(self, launch: Launch) -> None:
        launch.write(0, np.arange(launch.grid[0], dtype=np.uint32))

    def inside(self, address: int, size: int) -> None:
        assert any(at <= address and address + size <= at + one.size for at, (_, one) in self.memory.items()), "beyond what was taken"

    # cupy.cuda.runtime

    CUDARuntimeError = CUDARuntimeError
    memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice = 1, 2, 3

    def getDeviceCount(self) -> int:
        return self.gpus

    def setDevice(self, index: int) -> None:
        assert 0 <= index < self.gpus
        self.current = index

    def getDeviceProperties(self, index: int) -> dict[str, Any]:
        major, minor = self.capability
        named = {"name": b"NVIDIA Fake", "uuid": bytes(range(index, index + 16)), "major": major, "minor": minor}
        return named | {"multiProcessorCount": self.sms, "sharedMemPerMultiprocessor": SHARED_BYTES}

    def deviceGetPCIBusId(self, index: int) -> str:
        return f"0000:0A:{index:02}.0"

    def deviceGetAttribute(self, attribute: int, index: int) -> int:
        assert attribute == 13
        return 1980000

    def deviceCanAccessPeer(self, index: int, peer: int) -> int:
        return int(self.peers)

    def deviceEnablePeerAccess(self, peer: int) -> None:
        assert peer != self.current
        if (self.current, peer) in self.reached:
            raise CUDARuntimeError("cudaErrorPeerAccessAlreadyEnabled: peer access is already enabled")
        self.reached.add((self.current, peer))

    def malloc(self, size: int) -> int:
        assert size > 0
        memory = np.full(size, 0xEE, np.uint8) if size < 1 << 20 else np.zeros(size, np.uint8)
        self.memory[memory.ctypes.data] = self.current, memory
        self.log.append(("malloc", self.current, size))
        return int(memory.ctypes.data)

    def free(self, address: int) -> None:
        if address:
            del self.memory[address]
            self.log.append(("free", self.current, address))

    def memset(self, address: int, byte: int, size: int) -> None:
        self.inside(address, size)
        ctypes.memset(address, byte, size)
        self.log.append(("memset", self.current, address, byte, size))

    def memcpy(self, to: int, source: int, size: int, kind: int) -> None:
        self.inside(to if kind == self.memcpyHostToDevice else source, size)
        ctypes.memmove(to, source, size)
        self.log.append(("memcpy", self.current, to, source, size))

    def memcpyAsync(self, to: int, source: int, size: int, kind: int, stream: int) -> None:
        for address, device in ((to, kind != self.memcpyDeviceToHost), (source, kind != self.memcpyHostToDevice)):
            if device:
                self.inside(address, size)
        ctypes.memmove(to, source, size)
        self.log.append(("memcpyAsync", self.current, to, source, size, stream))

    def streamSynchronize(self, stream: int) -> None:
        self.log.append(("synchronize", self.current, stream))

    def deviceSynchronize(self) -> None:
        self.log.append(("synchronize", self.current, None))

    # cupy.cuda

    def Stream(self, non_blocking: bool = False) -> Any:
        assert non_blocking
        handle = 0x1000 + len(self.did("stream"))
        self.log.append(("stream", self.current, handle))
        return SimpleNamespace(ptr=handle, synchronize=lambda: self.log.append(("synchronize", self.current, handle)))

    def Event(self, disable_timing: bool = False) -> Any:
        return SimpleNamespace(
            record=lambda stream: self.log.append(("record", stream.ptr)), synchronize=lambda: self.log.append(("synchronize", "event"))
        )

    # cuda.bindings.driver

    def cuModuleLoadData(self, image: bytes) -> tuple[Any, Any]:
        self.log.append(("module", self.current, image))
        return self.success, image

    def cuModuleGetFunction(self, module: bytes, name: bytes) -> tuple[Any, Any]:
        assert module == b"x.cu" or sizes_of(name.decode()) is not None, "there is such a kernel"
        handle = len(self.functions) + 1
        self.functions[handle] = name.decode()
        self.log.append(("function", self.current, name.decode()))
        return self.success, (self.current, handle)

    def cuFuncSetAttribute(self, function: tuple[int, int], attribute: Any, value: int) -> tuple[Any]:
        assert attribute == self.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.log.append(("shared", self.functions[function[1]], value))
        return (self.success,)

    def cuLaunchKernelEx(self, config: Any, function: tuple[int, int], parameters: int, extra: int) -> tuple[Any]:
        gpu, handle = function
        assert gpu == self.current, "a kernel is launched on the GPU that it is loaded on"
        assert extra == 0
        grid, block = (tuple(getattr(config, f"{what}Dim{axis}") for axis in "XYZ") for what in ("grid", "block"))
        attributes: dict[str, Any] = {}
        for attribute in config.attrs if config.numAttrs else []:
            value = attribute.value
            kind = attribute.id.name.removeprefix("CU_LAUNCH_ATTRIBUTE_")
            attributes[kind] = {
                "COOPERATIVE": lambda v: v.cooperative,
                "MEM_SYNC_DOMAIN": lambda v: v.memSyncDomain.name.rpartition("_")[2],
                "MEM_SYNC_DOMAIN_MAP": lambda v: (v.memSyncDomainMap.default_, v.memSyncDomainMap.remote),
            }[kind](value)
        assert len(attributes) == config.numAttrs
        name, pointers = self.functions[handle], np.frombuffer(ctypes.string_at(parameters, 8 * len(self.sizes)), np.uint64)
        if (sizes := sizes_of(name)) is not None:
            optional = int(name == "xstage_burst" and len(self.sizes) < len(sizes))  # of tensor stores
            assert len(self.sizes) == len(sizes) - optional, f"{name} has {len(sizes)} parameters"
            wrong = [(i, size, want) for i, (size, want) in enumerate(zip(self.sizes, sizes, strict=False)) if want not in (size, None)]
            assert not wrong, f"{name}: (parameter, bytes given, bytes read) {wrong}"
        values = tuple(ctypes.string_at(int(at), size) for at, size in zip(pointers, self.sizes, strict=True))
        launch = Launch(name, gpu, grid, block, config.sharedMemBytes, int(config.hStream), attributes, values)
        self.log.append(("launch", launch.kernel, gpu))
        self.launches.append(launch)
        self.kernels.get(launch.kernel, lambda launch: None)(launch)
        return (self.success,)


def install(patch: pytest.MonkeyPatch, **shape: Any) -> FakeCuda:
    """Put a FakeCuda in the place of cupy and of the driver's library; kernels are compiled to their names."""
    driver = pytest.importorskip("cuda.bindings.driver")
    fake = FakeCuda(**shape)
    fake.driver, fake.success = driver, driver.CUresult.CUDA_SUCCESS  # type: ignore[attr-defined]
    cupy, cuda = ModuleType("cupy"), ModuleType("cupy.cuda")
    cupy.cuda, cuda.runtime, cuda.Stream, cuda.Event = cuda, fake, fake.Stream, fake.Event  # type: ignore[attr-defined]
    cuda.alloc_pinned_memory = lambda size: np.zeros(size, np.uint8)  # type: ignore[attr-defined]
    cuda.get_elapsed_time = lambda begin, end: 1.5  # type: ignore[attr-defined]
    patch.setitem(sys.modules, "cupy", cupy)
    patch.setitem(sys.modules, "cupy.cuda", cuda)
    for name in ("cuModuleLoadData", "cuModuleGetFunction", "cuFuncSetAttribute", "cuLaunchKernelEx"):
        patch.setattr(driver, name, getattr(fake, name))

    launch = CudaGpu.launch

    def sized(self: CudaGpu, kernel: Any, grid: Any, threads: int, arguments: Any, **more: Any) -> None:
        fake.sizes = [np.asarray(a).nbytes for a in arguments]  # the driver is not told
        launch(self, kernel, grid, threads, arguments, **more)

    patch.setattr(CudaGpu, "launch", sized)

    def compile_kernel(source: str, arch: str, defines: Any = None, headers: Any = None) -> bytes:
        fake.log.append(("compile", source, arch, dict(defines or {}), dict(headers or {})))
        return source.encode()

    patch.setattr("xstage_bench.device.cuda.gpu.compile_kernel", compile_kernel)
    return fake
