"""One GPU of a fused attention: plain memory that peers may write, and the small kernels beside the attention."""

from __future__ import annotations

from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.compile import compile_kernel
from xstage_bench.fused.gpu import POISON_BYTE, TIMEOUT_NS, PeerGpu
from xstage_bench.fused.ulysses.check import CHECK_SUMS, Verdict, check_plan, verdict
from xstage_bench.fused.ulysses.problem import Problem

_COPY_THREADS = 512
_BESIDE = {
    "transfer": ("xstage_copy_pieces", "xstage_meet"),
    "attention_check": ("xstage_attention_fill", "xstage_attention_census", "xstage_attention_check_64", "xstage_attention_check_128"),
}


class AttentionGpu(PeerGpu):
    """Memory, streams and loaded kernels of one GPU.

    Memory is plain cudaMalloc: what comes from a pool is not visible to peers.
    """

    def __init__(self, device: int) -> None:
        super().__init__(device)
        self.side_stream = self._cupy.cuda.Stream(non_blocking=True)
        self._kernels: dict[str, Any] = {}
        self._folder = TemporaryDirectory(prefix="xstage-")
        for source, names in _BESIDE.items():
            path = f"{self._folder.name}/{source}.cubin"
            with open(path, "wb") as file:
                file.write(compile_kernel(f"{source}.cu", self.arch))
            module = self._cupy.RawModule(path=path)
            for name in names:
                self._kernels[name] = module.get_function(name)
                assert self._kernels[name].kernel is not None  # loads it now
        self.late = self.zeros(4)
        self._sums = self.zeros(CHECK_SUMS.itemsize)

    def room(self, size: int) -> int:
        """Address of `size` new bytes."""
        self.use()
        return int(self._runtime.malloc(max(size, 16)))

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

    def free(self, address: int) -> None:
        """Give memory back."""
        self.use()
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
                    (np.uint64(address), np.uint32(count), np.uint32(epoch), np.uint64(TIMEOUT_NS), np.uint64(self.late)),
                )  # fmt: skip

    def meet(self, mail: int, rank: int, ranks: int, go: int, turn: int) -> None:
        """Queue the wait for the host and the other ranks."""
        self.use()
        with self.stream:
            arguments = (np.uint64(mail), np.uint32(rank), np.uint32(ranks), np.uint64(go), np.uint32(turn), np.uint64(TIMEOUT_NS))
            self._kernels["xstage_meet"]((1,), (1,), (*arguments, np.uint64(self.late)))

    def was_late(self) -> bool:
        """Whether a wait inside a kernel ended by its time-out since this was last asked."""
        late = bool(self.download(self.late, np.dtype("<u4"))[0])
        if late:
            self._runtime.memset(self.late, 0, 4)
        return late
