"""One GPU of a fused measurement: plain memory that peers may write, the small kernels beside the attention, events and streams."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.compile import compile_kernel
from xstage_bench.errors import XStageError
from xstage_bench.kernels.attention.attention import Attention, Build
from xstage_bench.kernels.attention.check import CHECK_SUMS, Verdict, check_plan, verdict
from xstage_bench.kernels.attention.problem import Problem

_COPY_THREADS = 512
_TIMEOUT_NS = 2_000_000_000
POISON_BYTE = 0xFF  # two of them are a bf16 NaN, which no result is


class Gpu:
    """Memory, streams and loaded kernels of one GPU.

    Memory is plain cudaMalloc: what comes from a pool is not visible to peers.
    """

    def __init__(self, device: int) -> None:
        import cupy
        from cupy.cuda import runtime

        self.device, self._cupy, self._runtime = device, cupy, runtime
        runtime.setDevice(device)
        properties = runtime.getDeviceProperties(device)
        self.name = properties["name"].decode()
        self.sms = int(properties["multiProcessorCount"])
        self._arch = f"sm_{properties['major']}{properties['minor']}"
        self._folder = TemporaryDirectory(prefix="xstage-")
        self._kernels: dict[str, Any] = {}
        for source, names in (
            ("transfer", ("xstage_copy_pieces", "xstage_meet")),
            (
                "attention_check",
                ("xstage_attention_fill", "xstage_attention_census", "xstage_attention_check_64", "xstage_attention_check_128"),
            ),
        ):
            self._kernels |= self._load(source, names)
        self._attention: dict[Build, Attention] = {}
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.side_stream = cupy.cuda.Stream(non_blocking=True)
        self._memory: list[int] = []
        self.late = self.zeros(4)
        self._sums = self.zeros(CHECK_SUMS.itemsize)

    def reach(self, peers: set[int]) -> None:
        """Enable access to the memory of these GPUs.

        Raises
        ------
        XStageError
            A GPU cannot address another's memory.
        """
        self.use()
        for peer in peers - {self.device}:
            if not self._runtime.deviceCanAccessPeer(self.device, peer):
                raise XStageError(f"GPU {self.device} cannot address the memory of GPU {peer}", "see 'xstage topo' for the pairs that can")
            try:
                self._runtime.deviceEnablePeerAccess(peer)
            except self._runtime.CUDARuntimeError as error:
                if "AlreadyEnabled" not in str(error) and "already enabled" not in str(error):
                    raise

    def use(self) -> None:
        """Make this the current GPU of the calling thread."""
        self._runtime.setDevice(self.device)

    def attention(self, build: Build) -> Attention:
        """Return the kernel of a build, loaded on first use."""
        if build not in self._attention:
            self._attention[build] = Attention(self.device, build)
        return self._attention[build]

    def room(self, size: int) -> int:
        """Address of `size` new bytes."""
        self.use()
        self._memory.append(int(self._runtime.malloc(max(size, 16))))
        return self._memory[-1]

    def zeros(self, size: int) -> int:
        """Address of `size` new bytes of zero."""
        address = self.room(size)
        self._runtime.memset(address, 0, max(size, 16))
        self._runtime.deviceSynchronize()  # our streams do not wait for the one that fills
        return address

    def upload(self, array: NDArray[Any]) -> int:
        """Address of a copy of `array`."""
        raw = np.ascontiguousarray(array)
        address = self.room(raw.nbytes)
        if raw.nbytes:
            self._runtime.memcpy(address, raw.ctypes.data, raw.nbytes, self._runtime.memcpyHostToDevice)
        return address

    def download(self, address: int, dtype: np.dtype[Any], count: int = 1) -> NDArray[Any]:
        """Copy `count` entries to the host."""
        out = np.zeros(count, dtype)
        self.use()
        self._runtime.memcpy(out.ctypes.data, address, out.nbytes, self._runtime.memcpyDeviceToHost)
        return out

    def free(self, addresses: list[int]) -> None:
        """Give memory back."""
        self.use()
        for address in addresses:
            self._memory.remove(address)
            self._runtime.free(address)

    def normal(self, elements: int, seed: int) -> int:
        """Address of so many normal deviates in bf16; an even number."""
        address = self.room(2 * elements)
        self._kernels["xstage_attention_fill"]((self.sms * 8,), (256,), (np.uint64(address), np.uint64(elements // 2), np.uint32(seed)))
        self.synchronize()
        return address

    def poison(self, address: int, size: int) -> None:
        """Fill with what no result can be."""
        self.use()
        self._runtime.memset(address, POISON_BYTE, size)
        self._runtime.deviceSynchronize()

    def unwritten(self, address: int, elements: int) -> int:
        """Count the elements that are still poison."""
        self.use()
        self._runtime.memset(self._sums, 0, CHECK_SUMS.itemsize)
        self._kernels["xstage_attention_census"]((self.sms * 8,), (256,), (np.uint64(address), np.uint64(elements), np.uint64(self._sums)))
        self.synchronize()
        return int(self.download(self._sums, np.dtype("<u8"))[0])

    def check(self, problem: Problem, rank: int, inputs: dict[str, int], out: dict[int, int]) -> Verdict:
        """Compare the rows of a rank's heads with the reference."""
        self.use()
        self._runtime.memset(self._sums, 0, CHECK_SUMS.itemsize)
        plan, rows = check_plan(problem, rank, inputs, out, self._sums)
        self._kernels[f"xstage_attention_check_{problem.head_dim}"]((rows, problem.local_heads), (256,), (plan,))
        self.synchronize()
        return verdict(self.download(self._sums, CHECK_SUMS), rows, problem.seq)

    def copy_pieces(self, pieces: tuple[int, int], stream: Any, *, blocks: int | None = None, epoch: int = 0) -> None:
        """Queue the copies of an uploaded piece table (address, count)."""
        address, count = pieces
        if count:
            self.use()
            with stream:
                self._kernels["xstage_copy_pieces"](
                    (min(count, blocks or self.sms),), (_COPY_THREADS,),
                    (np.uint64(address), np.uint32(count), np.uint32(epoch), np.uint64(_TIMEOUT_NS), np.uint64(self.late)),
                )  # fmt: skip

    def meet(self, mail: int, rank: int, ranks: int, go: int, turn: int) -> None:
        """Queue the wait for the host and the other ranks."""
        self.use()
        with self.stream:
            arguments = (np.uint64(mail), np.uint32(rank), np.uint32(ranks), np.uint64(go), np.uint32(turn), np.uint64(_TIMEOUT_NS))
            self._kernels["xstage_meet"]((1,), (1,), (*arguments, np.uint64(self.late)))

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

    def was_late(self) -> bool:
        """Whether a wait inside a kernel ended by its time-out since this was last asked."""
        late = bool(self.download(self.late, np.dtype("<u4"))[0])
        if late:
            self._runtime.memset(self.late, 0, 4)
        return late

    def _load(self, source: str, names: tuple[str, ...]) -> dict[str, Any]:
        path = f"{self._folder.name}/{source}.cubin"
        with open(path, "wb") as file:
            file.write(compile_kernel(f"{source}.cu", self._arch))
        module = self._cupy.RawModule(path=path)
        kernels = {name: module.get_function(name) for name in names}
        for kernel in kernels.values():
            assert kernel.kernel is not None  # loads it now
        return kernels
