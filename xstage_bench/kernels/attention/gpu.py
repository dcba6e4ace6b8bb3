"""One GPU of a fused measurement: plain memory that peers may write, the small kernels beside the attention, events and streams."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.compile import HOPPER
from xstage_bench.device.cuda.gpu import CudaGpu, LoadedKernel
from xstage_bench.errors import WaivedError
from xstage_bench.kernels.attention.attention import Build
from xstage_bench.kernels.attention.check import CHECK_SUMS, Verdict, check_plan, verdict
from xstage_bench.kernels.attention.problem import Problem

_COPY_THREADS = 512
_TIMEOUT_NS = 2_000_000_000
POISON_BYTE = 0xFF  # two of them are a bf16 NaN, which no result is


class Gpu(CudaGpu):
    """Memory, two streams and loaded kernels of one GPU."""

    def __init__(self, device: int) -> None:
        super().__init__(device)
        checks = ("attention_fill", "attention_census", "attention_check_64", "attention_check_128")
        self._kernels = self.load("transfer.cu", {"copy_pieces": 0, "meet": 0}) | self.load("attention_check.cu", dict.fromkeys(checks, 0))
        self._attention: dict[Build, LoadedKernel] = {}
        self.stream, self.side_stream = self.new_stream(), self.new_stream()
        self.zeroed(4, "late")

    def prepare(self, build: Build) -> None:
        """Load the attention kernel of a build; nothing happens when it is loaded already."""
        if self.capability != (9, 0):
            found = "GPU {} has compute capability {}.{}".format(self.index, *self.capability)
            raise WaivedError(f"{found}: the attention kernel needs 9.0", "run on an H100, H200 or GH200")
        if build not in self._attention:
            shared = {"attention": build.shared_bytes}
            self._attention[build] = self.load("attention.cu", shared, build.defines(), arch=HOPPER)["attention"]

    def attend(self, build: Build, plan: NDArray[Any], blocks: int | None = None) -> None:
        """Queue a prepared attention with a `PLAN` of one element, by so many CTAs (default one for each SM), never more than tiles."""
        blocks = min(self.sms if blocks is None else blocks, int(plan["tiles"][0]))
        self.launch(self._attention[build], (blocks,), build.threads, (plan,), stream=self.stream.ptr)

    def normal(self, elements: int, seed: int) -> int:
        """Address of so many normal deviates in bf16; an even number."""
        address = self.room(2 * elements)
        self._start("attention_fill", np.uint64(address), np.uint64(elements // 2), np.uint32(seed))
        return address

    def poison(self, address: int, size: int) -> None:
        """Fill with what no result can be."""
        self.fill(address, POISON_BYTE, size)

    def unwritten(self, address: int, elements: int) -> int:
        """Count the elements that are still poison."""
        self.zeroed(CHECK_SUMS.itemsize, "sums")
        self._start("attention_census", np.uint64(address), np.uint64(elements), self.at("sums"))
        return int(self.downloaded("sums", np.uint64)[0])

    def check(self, problem: Problem, rank: int, inputs: dict[str, int], out: dict[int, int]) -> Verdict:
        """Compare the rows of a rank's heads with the reference."""
        plan, rows = check_plan(problem, rank, inputs, out, self.zeroed(CHECK_SUMS.itemsize, "sums"))
        self._start(f"attention_check_{problem.head_dim}", plan, grid=(rows, problem.local_heads))
        return verdict(self.downloaded("sums", CHECK_SUMS), rows, problem.seq)

    def _start(self, name: str, *arguments: np.generic | NDArray[Any], grid: tuple[int, ...] | None = None) -> None:
        self.launch(self._kernels[name], grid or (self.sms * 8,), 256, arguments)
        self.synchronize()

    def copy_pieces(self, pieces: tuple[int, int], stream: Any, *, blocks: int | None = None, epoch: int = 0) -> None:
        """Queue the copies of an uploaded piece table (address, count)."""
        address, count = pieces
        if count:
            arguments = (np.uint64(address), np.uint32(count), np.uint32(epoch), np.uint64(_TIMEOUT_NS), self.at("late"))
            self.launch(self._kernels["copy_pieces"], (min(count, blocks or self.sms),), _COPY_THREADS, arguments, stream=stream.ptr)

    def meet(self, mail: int, rank: int, ranks: int, go: int, turn: int) -> None:
        """Queue the wait for the host and the other ranks."""
        arguments = (np.uint64(mail), np.uint32(rank), np.uint32(ranks), np.uint64(go), np.uint32(turn), np.uint64(_TIMEOUT_NS))
        self.launch(self._kernels["meet"], (1,), 1, (*arguments, self.at("late")), stream=self.stream.ptr)

    def event(self, stream: Any = None) -> Any:
        """Record a new event on a stream; the main one by default."""
        event = self.new_event()
        event.record(stream or self.stream)
        return event

    def was_late(self) -> bool:
        """Whether a wait inside a kernel ended by its time-out since this was last asked."""
        late = bool(self.downloaded("late", np.uint32)[0])
        if late:
            self.zeroed(4, "late")
        return late
