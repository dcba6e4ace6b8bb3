"""One GPU of this process: the one place that compiles, loads, allocates, launches and collects.

`CudaGpu.load` returns when every kernel asked for is on the GPU: loading one while another spins dead-locks. Memory is plain cudaMalloc,
since what comes from a pool is not visible to peers. CuPy gives the runtime; launches go through the driver, whose attributes CuPy's lack.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from xstage_bench.device.cuda.compile import compile_kernel
from xstage_bench.errors import XStageError

Way = Literal["HostToDevice", "DeviceToHost", "DeviceToDevice"]
Domain = Literal["same", "remote", "mapped"]
_LEAST_BYTES = 16
_CLOCK_RATE = 13  # cudaDevAttrClockRate, kHz: CUDA 13 has taken it out of the properties


class LoadedKernel(NamedTuple):
    """A kernel on one GPU, the dynamic shared memory of its CTAs, and whether all of them must be resident at once."""

    handle: Any
    shared_bytes: int
    cooperative: bool


def load_eagerly() -> None:
    """Let this process load whole modules at once; to be called before anything uses CUDA."""
    os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # lazy loading while another kernel spins dead-locks


def gpu_count() -> int:
    """Return how many GPUs this process can see."""
    from cupy.cuda import runtime

    return int(runtime.getDeviceCount())


def pinned(count: int, dtype: Any) -> NDArray[Any]:
    """Return page-locked host memory, which every GPU addresses as the CPU does; what is in it is not defined."""
    import cupy

    return np.frombuffer(cupy.cuda.alloc_pinned_memory(count * np.dtype(dtype).itemsize), dtype, count)


def watchdog(seconds: float | None) -> None:
    """End this process with a traceback unless this is called again in time, even from within a call that never returns; None: no more."""
    if seconds is None:
        faulthandler.cancel_dump_traceback_later()
    else:
        faulthandler.dump_traceback_later(seconds, exit=True, file=2)


class CudaGpu:
    """One GPU as an instrument sees it: facts, kernels, and memory by name that it shares with no other instrument.

    Every call makes this GPU the current one of the calling thread. `lone_bytes` is more than half of an SM's shared memory: no second CTA
    can join one that has as much.
    """

    def __init__(self, index: int) -> None:
        import cupy
        from cuda.bindings import driver

        self._cupy, self._driver, self._runtime = cupy, driver, cupy.cuda.runtime
        self.index = index
        self.use()
        self._runtime.free(0)  # a context for the calls of the driver
        p = self._runtime.getDeviceProperties(index)
        raw = bytes(p["uuid"]).hex()
        self.name, self.uuid = p["name"].decode(), f"GPU-{raw[:8]}-{raw[8:12]}-{raw[12:16]}-{raw[16:20]}-{raw[20:32]}"
        self.pci_address = str(self._runtime.deviceGetPCIBusId(index)).lower()
        self.capability = int(p["major"]), int(p["minor"])
        self.arch = "sm_{}{}".format(*self.capability)
        self.sms = int(p["multiProcessorCount"])
        self.sm_clock_mhz = (p.get("clockRate") or self._runtime.deviceGetAttribute(_CLOCK_RATE, index)) / 1e3
        self.lone_bytes = int(p["sharedMemPerMultiprocessor"]) // 2 + 1024
        self._rooms: dict[str, tuple[int, int]] = {}

    def use(self) -> None:
        """Make this the current GPU of the calling thread."""
        self._runtime.setDevice(self.index)

    def reaches(self, peer: int) -> bool:
        """Whether this GPU can address another's memory."""
        return bool(self._runtime.deviceCanAccessPeer(self.index, peer))

    def reach(self, peers: Iterable[int]) -> None:
        """Make the memory of other GPUs addressable by this one; `XStageError` where it cannot be. Itself may be among them."""
        self.use()
        for peer in set(peers) - {self.index}:
            if not self.reaches(peer):
                raise XStageError(f"GPU {self.index} cannot address the memory of GPU {peer}", "see 'xstage topo' for the pairs that can")
            try:
                self._runtime.deviceEnablePeerAccess(peer)
            except self._runtime.CUDARuntimeError as error:
                if "AlreadyEnabled" not in str(error) and "already enabled" not in str(error):
                    raise

    def load(
        self,
        source: str,
        shared_bytes: Mapping[str, int],
        defines: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        arch: str | None = None,
        cooperative: bool = False,
    ) -> dict[str, LoadedKernel]:
        """Compile a file of ``cuda/`` as `compile_kernel` does, by default for this GPU's architecture, and load some of its kernels.

        Parameters
        ----------
        shared_bytes : mapping of str to int
            Names of kernels, without ``xstage_``, and the dynamic shared memory of a CTA of each.
        cooperative : bool
            A launch fails unless all CTAs can be resident at once.
        """
        cubin = compile_kernel(source, arch or self.arch, defines, headers)
        self.use()
        driver = self._driver
        module = self._done(driver.cuModuleLoadData(cubin))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        loaded = {}
        for name, size in shared_bytes.items():
            handle = self._done(driver.cuModuleGetFunction(module, f"xstage_{name}".encode()))  # loads it, in every mode of loading
            if size:
                self._done(driver.cuFuncSetAttribute(handle, limit, size))
            loaded[name] = LoadedKernel(handle, size, cooperative)
        return loaded

    def launch(
        self,
        kernel: LoadedKernel,
        grid: tuple[int, ...],
        threads: int,
        arguments: Sequence[np.generic | NDArray[Any]],
        *,
        stream: int = 0,
        shared_bytes: int | None = None,
        domain: Domain = "same",
    ) -> None:
        """Start a kernel and return at once; nothing is allocated, compiled or waited for.

        Parameters
        ----------
        arguments : sequence of numpy scalars and arrays
            One for each parameter of the kernel: a scalar of its very type, or a struct as an array of one element.
        stream : int
            Handle; by default that of copies and fills.
        shared_bytes : int, optional
            Where it is not that of the kernel.
        domain : {'same', 'remote', 'mapped'}
            Of memory synchronisation: the default one, the remote one, or the default one with a number that no other launch has.
        """
        values = [_parameter(a) for a in arguments]
        pointers = np.array([v.ctypes.data for v in values], dtype=np.uint64)
        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1, 1)[:3]
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = kernel.shared_bytes if shared_bytes is None else shared_bytes
        config.hStream = self._driver.CUstream(stream)
        if attributes := self._attributes(kernel.cooperative, domain):
            config.attrs = attributes
        config.numAttrs = len(attributes)
        self.use()
        self._done(self._driver.cuLaunchKernelEx(config, kernel.handle, int(pointers.ctypes.data), 0))

    def _attributes(self, cooperative: bool, domain: Domain) -> list[Any]:
        driver = self._driver

        def attribute(name: str, field: str, value: Any) -> Any:
            out, union = driver.CUlaunchAttribute(), driver.CUlaunchAttributeValue()
            setattr(union, field, value)
            out.id, out.value = getattr(driver.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}"), union
            return out

        found = [attribute("COOPERATIVE", "cooperative", 1)] if cooperative else []
        if domain == "remote":
            found.append(attribute("MEM_SYNC_DOMAIN", "memSyncDomain", driver.CUlaunchMemSyncDomain.CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE))
        elif domain == "mapped":
            numbers = driver.CUlaunchMemSyncDomainMap()
            numbers.default_, numbers.remote = 2, 3
            found.append(attribute("MEM_SYNC_DOMAIN_MAP", "memSyncDomainMap", numbers))
        return found

    def room(self, size: int, name: str = "", fill: int | None = None) -> int:
        """Address of at least `size` bytes: the same for a name until it has to grow, new ones without; new ones hold the byte `fill`."""
        at, have = self._rooms.get(name, (0, 0))
        if have < size or not at:
            self.use()
            if at:
                self._runtime.free(at)
            have = max(size, _LEAST_BYTES)
            at = int(self._runtime.malloc(have))
            if name:
                self._rooms[name] = at, have
            if fill is not None:
                self.fill(at, fill, have)
        return at

    def free(self, address: int) -> None:
        """Give memory without a name back."""
        self.use()
        self._runtime.free(address)

    def at(self, name: str) -> np.uint64:
        """Address of memory that has been taken by this name, as an argument of a kernel."""
        return np.uint64(self._rooms[name][0])

    def fill(self, address: int, byte: int, size: int) -> None:
        """Set every byte, and wait for it: our streams do not wait for the one that fills and copies."""
        if size:
            self.use()
            self._runtime.memset(address, byte, size)
            self._runtime.streamSynchronize(0)

    def zeroed(self, size: int, name: str = "") -> int:
        """Address of `room` with zeros."""
        at = self.room(size, name)
        self.fill(at, 0, size)
        return at

    def uploaded(self, array: NDArray[Any], name: str = "") -> int:
        """Address of `room` with a copy of an array."""
        at, raw = self.room(array.nbytes, name), np.ascontiguousarray(array)
        if raw.nbytes:
            self.use()
            self._runtime.memcpy(at, raw.ctypes.data, raw.nbytes, self._runtime.memcpyHostToDevice)
            self._runtime.streamSynchronize(0)
        return at

    def downloaded(self, at: str | int, dtype: Any, shape: int | tuple[int, ...] = 1) -> NDArray[Any]:
        """Return a copy of memory, by its name or address."""
        out = np.zeros(shape, dtype)
        if out.nbytes:
            self.use()
            address = self._rooms[at][0] if isinstance(at, str) else at
            self._runtime.memcpy(out.ctypes.data, address, out.nbytes, self._runtime.memcpyDeviceToHost)
        return out

    def copy(self, to: int, source: int, size: int, way: Way, stream: int) -> None:
        """Queue a copy and return at once; what is on the host must be `pinned`."""
        self.use()
        self._runtime.memcpyAsync(to, source, size, getattr(self._runtime, f"memcpy{way}"), stream)

    def new_stream(self) -> Any:
        """Return a new stream, which waits for no other."""
        self.use()
        return self._cupy.cuda.Stream(non_blocking=True)

    def new_event(self, *, timed: bool = True) -> Any:
        """Return a new event."""
        self.use()
        return self._cupy.cuda.Event(disable_timing=not timed)

    def elapsed_ms(self, begin: Any, end: Any) -> float:
        """Milliseconds between two events of this GPU that have both happened."""
        return float(self._cupy.cuda.get_elapsed_time(begin, end))

    def synchronize(self) -> None:
        """Wait for everything that was asked of this GPU."""
        self.use()
        self._runtime.deviceSynchronize()

    def _done(self, result: tuple[Any, ...]) -> Any:
        if result[0] != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"GPU {self.index}: {result[0].name}")
        return result[1] if len(result) == 2 else None


def _parameter(value: ArrayLike) -> NDArray[Any]:
    """Return the bytes of one parameter. A Python number is refused: it would be eight bytes, whatever the kernel reads."""
    if not isinstance(value, np.generic | np.ndarray) or np.size(value) != 1:
        raise TypeError(f"a kernel's parameter is a numpy scalar or an array of one struct, not {value!r}")
    return np.ascontiguousarray(np.atleast_1d(value))
