"""What the fused kernels share of a GPU: a kernel of sm_90a and its launch, peers' memory, a stream and its events."""

from __future__ import annotations

from typing import Any, ClassVar

from numpy.typing import NDArray

from xstage_bench.device.cuda.compile import HOPPER, compile_kernel
from xstage_bench.device.cuda.gpu import CudaGpu
from xstage_bench.errors import WaivedError

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

    def switches(self) -> dict[str, int]:
        """What it is compiled for, by the macros' names without their prefix."""
        raise NotImplementedError

    def defines(self) -> dict[str, str]:
        """Preprocessor definitions."""
        return {f"XSTAGE_{name}": str(int(value)) for name, value in self.switches().items()}

    def cubin(self) -> bytes:
        """Compile; needs no GPU."""
        return compile_kernel(self.source, HOPPER, self.defines())


class HopperKernel:
    """The kernel of one build, loaded on one GPU."""

    def __init__(self, gpu: CudaGpu, build: HopperBuild) -> None:
        if gpu.capability != (9, 0):
            found = "GPU {} has compute capability {}.{}".format(gpu.index, *gpu.capability)
            raise WaivedError(f"{found}, and {build.source} multiplies by wgmma, which only 9.0 has", "run on an H100, H200 or GH200")
        name = build.symbol.removeprefix("xstage_")
        self._gpu, self._threads = gpu, build.threads
        self._kernel = gpu.load(build.source, {name: build.shared_bytes}, build.defines(), arch=HOPPER)[name]

    def launch(self, plan: NDArray[Any], stream: int, ctas: int) -> None:
        """Start the kernel and return at once; `plan`, one element, is its only parameter and is copied into the launch."""
        self._gpu.launch(self._kernel, (ctas,), self._threads, (plan,), stream=stream)


class PeerGpu(CudaGpu):
    """One GPU of a group whose members write each other's memory."""

    def __init__(self, device: int) -> None:
        super().__init__(device)
        self.stream = self.new_stream()
        self._loaded: dict[HopperBuild, HopperKernel] = {}

    def kernel(self, build: HopperBuild) -> HopperKernel:
        """Return the kernel of a build, loaded on first use; never while another kernel runs."""
        if build not in self._loaded:
            self._loaded[build] = HopperKernel(self, build)
        return self._loaded[build]

    def event(self, stream: Any = None) -> Any:
        """Record a new event on a stream; the main one by default."""
        event = self.new_event()
        event.record(stream or self.stream)
        return event
