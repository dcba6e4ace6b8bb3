"""What the fused kernels share of a GPU: a kernel of sm_90a and its launch, peers' memory, a stream and its events."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.compile import HOPPER, compile_kernel
from xstage_bench.errors import WaivedError, XStageError

#: After which a wait inside a kernel ends with an error.
TIMEOUT_NS = 2_000_000_000
#: What memory is filled with before a kernel writes results to it: a NaN of bf16 and of float32, which no result is.
POISON_BYTE = 0xFF


class HopperBuild:
    """One compile-time variant of a kernel; hashable, since a GPU keeps what it has loaded."""

    source: ClassVar[str]
    symbol: ClassVar[str]

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        raise NotImplementedError

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a CTA."""
        raise NotImplementedError

    def defines(self) -> dict[str, str]:
        """Preprocessor definitions."""
        raise NotImplementedError

    def cubin(self) -> bytes:
        """Compile; needs no GPU."""
        return compile_kernel(self.source, HOPPER, self.defines())


class HopperKernel:
    """The kernel of one build, loaded on one GPU."""

    def __init__(self, device: int, build: HopperBuild) -> None:
        from cuda.bindings import driver
        from cupy.cuda import runtime

        self.device, self.build, self._runtime, self._driver = device, build, runtime, driver
        runtime.setDevice(device)
        properties = runtime.getDeviceProperties(device)
        if (int(properties["major"]), int(properties["minor"])) != (9, 0):
            raise WaivedError(
                f"GPU {device} has compute capability {properties['major']}.{properties['minor']}: {build.source} needs 9.0",
                "run on an H100, H200 or GH200",
            )
        runtime.free(0)  # a context for the driver calls below
        module = self._call(driver.cuModuleLoadData(build.cubin()))
        self._function = self._call(driver.cuModuleGetFunction(module, build.symbol.encode()))
        limit = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self._call(driver.cuFuncSetAttribute(self._function, limit, build.shared_bytes))

    def launch(self, plan: NDArray[Any], stream: int, ctas: int) -> None:
        """Start the kernel and return at once; `plan`, one element, is its only parameter and is copied into the launch."""
        self._runtime.setDevice(self.device)
        arguments = np.array([plan.ctypes.data], dtype=np.uint64)  # void **
        driver, build = self._driver, self.build
        self._call(
            driver.cuLaunchKernel(
                self._function, ctas, 1, 1, build.threads, 1, 1, build.shared_bytes, driver.CUstream(stream), int(arguments.ctypes.data), 0
            )
        )

    def _call(self, result: tuple[Any, ...]) -> Any:
        if result[0] != self._driver.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"GPU {self.device}: {result[0].name}")
        return result[1] if len(result) == 2 else None


class PeerGpu:
    """One GPU of a group whose members write each other's memory."""

    def __init__(self, device: int) -> None:
        import cupy
        from cupy.cuda import runtime

        self.device, self._cupy, self._runtime = device, cupy, runtime
        self.use()
        properties = runtime.getDeviceProperties(device)
        self.name, self.sms = properties["name"].decode(), int(properties["multiProcessorCount"])
        self.arch = f"sm_{properties['major']}{properties['minor']}"
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self._loaded: dict[HopperBuild, HopperKernel] = {}

    def reach(self, peers: Iterable[int]) -> None:
        """Enable access to the memory of these GPUs; `XStageError` where this GPU cannot address it."""
        self.use()
        for peer in set(peers) - {self.device}:
            if not self._runtime.deviceCanAccessPeer(self.device, peer):
                raise XStageError(f"GPU {self.device} cannot address the memory of GPU {peer}", "see 'xstage topo' for the pairs that can")
            try:
                self._runtime.deviceEnablePeerAccess(peer)
            except self._runtime.CUDARuntimeError as error:
                if "lreadyEnabled" not in str(error) and "already enabled" not in str(error):
                    raise

    def use(self) -> None:
        """Make this the current GPU of the calling thread, of CuPy and of the runtime."""
        self._cupy.cuda.Device(self.device).use()

    def kernel(self, build: HopperBuild) -> HopperKernel:
        """Return the kernel of a build, loaded on first use; never while another kernel runs."""
        if build not in self._loaded:
            self._loaded[build] = HopperKernel(self.device, build)
        return self._loaded[build]

    def event(self, stream: Any = None) -> Any:
        """Record a new event on a stream; the main one by default."""
        self.use()
        event = self._cupy.cuda.Event()
        event.record(stream or self.stream)
        return event

    def elapsed_us(self, begin: Any, end: Any) -> float:
        """Microseconds between two events of this GPU that have both happened."""
        return float(self._cupy.cuda.get_elapsed_time(begin, end)) * 1e3

    def synchronize(self) -> None:
        """Wait for everything that was asked of this GPU."""
        self.use()
        self._runtime.deviceSynchronize()
