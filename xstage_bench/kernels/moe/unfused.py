"""The same layer as frameworks run it: All-to-All, grouped GEMM, SwiGLU, grouped GEMM, All-to-All, weighted sum, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from xstage_bench.errors import WaivedError
from xstage_bench.kernels.moe.group import Group
from xstage_bench.kernels.moe.layer import PADDING
from xstage_bench.kernels.nccl import Nccl


def unfused_us(group: Group, repetitions: int) -> list[float]:
    """Time the layer by PyTorch's grouped GEMM and NCCL's All-to-All, bf16; of the slowest GPU, once per repetition.

    Parameters
    ----------
    group : Group
        Gives rows, shapes and streams; tokens and weights are random numbers of the same sizes.
    repetitions : int
        After two that do not count.

    Raises
    ------
    WaivedError
        PyTorch or its grouped GEMM is not there, or the layer is FP8: its grouped GEMM scales in another way.
    """
    layer = group.layer
    if layer.dtype != "bf16":
        raise WaivedError("PyTorch's grouped FP8 GEMM scales in another way", "compare bf16")
    try:
        import torch
    except ImportError as error:
        raise WaivedError(f"PyTorch is not installed: {error}", "pip install torch") from None
    grouped = getattr(torch, "_grouped_mm", None)
    if grouped is None:
        raise WaivedError(f"PyTorch {torch.__version__} has no grouped GEMM", "PyTorch 2.9 or later")
    nccl = Nccl(group.gpus.devices)
    ranks = [_Rank(torch, grouped, group, r) for r in range(len(group.ranks))]
    messages = [(a.rank, b.rank, a.send.data_ptr(), b.receive.data_ptr(), a.remote_bytes) for a in ranks for b in ranks if a is not b]
    streams = [stream.ptr for stream in group.gpus.streams]
    out = []
    for repetition in range(repetitions + 2):
        for rank in ranks:
            torch.cuda.synchronize(rank.device)
        begin = [rank.event() for rank in ranks]
        nccl.exchange(messages, streams)
        for rank in ranks:
            rank.experts()
        nccl.exchange(messages, streams)
        for rank in ranks:
            rank.sum_rows()
        end = [rank.event() for rank in ranks]
        for rank in ranks:
            torch.cuda.synchronize(rank.device)
        if repetition >= 2:
            out.append(max(1e3 * a.elapsed_time(b) for a, b in zip(begin, end, strict=True)))
    nccl.close()
    return out


class _Rank:
    """One rank's tensors and steps."""

    def __init__(self, torch: Any, grouped: Any, group: Group, rank: int) -> None:
        self._torch, self._grouped, self.rank, me = torch, grouped, rank, group.ranks[rank]
        self.device = torch.device(f"cuda:{me.device}")
        self.stream = torch.cuda.ExternalStream(group.gpus.streams[rank].ptr, device=self.device)
        s, real = group.layer.shape, me.rows.owner != PADDING
        count = int(real.sum())
        self.remote_bytes = int((real & (me.rows.owner != rank)).sum()) * s.hidden * 2
        ends = np.cumsum(np.bincount(me.rows.block_expert, weights=me.rows.block_rows, minlength=group.layer.local_experts))

        def random(*shape: int) -> Any:
            return torch.randn(*shape, device=self.device, dtype=torch.bfloat16)

        self.send, self.receive, self.x = random(count, s.hidden), random(count, s.hidden), random(count, s.hidden)
        self.w1 = random(group.layer.local_experts, 2 * s.inter, s.hidden).transpose(1, 2)
        self.w2 = random(group.layer.local_experts, s.inter, s.hidden)
        self.ends = torch.tensor(ends.astype(np.int32), device=self.device)
        self.tokens, self.top_k = group.layer.tokens, s.top_k
        self.weight = torch.rand(self.tokens, s.top_k, 1, device=self.device, dtype=torch.bfloat16)
        self.rows = random(self.tokens * s.top_k, s.hidden).view(self.tokens, s.top_k, s.hidden)

    def event(self) -> Any:
        event = self._torch.cuda.Event(enable_timing=True)
        event.record(self.stream)
        return event

    def experts(self) -> None:
        torch = self._torch
        with torch.cuda.device(self.device), torch.cuda.stream(self.stream):
            gate, up = self._grouped(self.x, self.w1, offs=self.ends).chunk(2, dim=1)
            self._grouped(torch.nn.functional.silu(gate) * up, self.w2, offs=self.ends)

    def sum_rows(self) -> None:
        with self._torch.cuda.device(self.device), self._torch.cuda.stream(self.stream):
            (self.rows * self.weight).sum(dim=1)
