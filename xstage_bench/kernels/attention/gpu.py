"""One GPU of a fused attention: the small kernels beside the attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.kernels.attention.check import CHECK_SUMS, Verdict, check_plan, verdict
from xstage_bench.kernels.attention.problem import Problem
from xstage_bench.kernels.gpu import POISON_BYTE, TIMEOUT_NS, PeerGpu

_COPY_THREADS = 512


class AttentionGpu(PeerGpu):
    """Two streams and the loaded kernels of one GPU."""

    def __init__(self, device: int) -> None:
        super().__init__(device)
        checks = ("attention_fill", "attention_census", "attention_check_64", "attention_check_128")
        self._kernels = self.load("transfer.cu", {"copy_pieces": 0, "meet": 0}) | self.load("attention_check.cu", dict.fromkeys(checks, 0))
        self.side_stream = self.new_stream()
        self.zeroed(4, "late")

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
            arguments = (np.uint64(address), np.uint32(count), np.uint32(epoch), np.uint64(TIMEOUT_NS), self.at("late"))
            self.launch(self._kernels["copy_pieces"], (min(count, blocks or self.sms),), _COPY_THREADS, arguments, stream=stream.ptr)

    def meet(self, mail: int, rank: int, ranks: int, go: int, turn: int) -> None:
        """Queue the wait for the host and the other ranks."""
        arguments = (np.uint64(mail), np.uint32(rank), np.uint32(ranks), np.uint64(go), np.uint32(turn), np.uint64(TIMEOUT_NS))
        self.launch(self._kernels["meet"], (1,), 1, (*arguments, self.at("late")), stream=self.stream.ptr)

    def was_late(self) -> bool:
        """Whether a wait inside a kernel ended by its time-out since this was last asked."""
        late = bool(self.downloaded("late", np.uint32)[0])
        if late:
            self.zeroed(4, "late")
        return late
