"""The same layer as frameworks run it: All-to-All, grouped GEMM, SwiGLU, grouped GEMM, All-to-All, weighted sum, one after the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from xstage_bench.errors import WaivedError
from xstage_bench.kernels.moe.group import ExpertGroup
from xstage_bench.kernels.moe.layer import PADDING
from xstage_bench.kernels.nccl import Nccl

WARM_UP = 2


def unfused_us(group: ExpertGroup, repetitions: int) -> list[float]:
    """Time the layer by PyTorch's grouped GEMM and NCCL's All-to-All, bf16; of the slowest GPU, once per repetition.

    The group gives rows, shapes and streams; tokens and weights are random numbers of the same sizes. `WaivedError`: PyTorch or its grouped
    GEMM is not there, or the layer is FP8, which its grouped GEMM scales in another way.
    """
    if group.layer.dtype != "bf16":
        raise WaivedError("PyTorch's grouped FP8 GEMM scales in another way", "compare bf16")
    try:
        import torch
    except ImportError as error:
        raise WaivedError(f"PyTorch is not installed: {error}", "pip install torch") from None
    grouped = getattr(torch, "_grouped_mm", None)
    if grouped is None:
        raise WaivedError(f"PyTorch {torch.__version__} has no grouped GEMM", "PyTorch 2.9 or later")
    nccl = Nccl(group.gpus.devices)
    ranks = [_TorchRank(torch, grouped, group, r) for r in range(len(group.ranks))]
    messages = [(a.rank, b.rank, a.send.data_ptr(), b.receive.data_ptr(), a.remote_bytes) for a in ranks for b in ranks if a is not b]
    streams = [rank.gpu.stream.ptr for rank in ranks]
    out = []
    for repetition in range(repetitions + WARM_UP):
        for rank in ranks:
            rank.gpu.synchronize()
        begin = [rank.gpu.event() for rank in ranks]
        nccl.exchange(messages, streams)
        for rank in ranks:
            rank.experts()
        nccl.exchange(messages, streams)
        for rank in ranks:
            rank.sum_rows()
        end = [rank.gpu.event() for rank in ranks]
        for rank in ranks:
            rank.gpu.synchronize()
        if repetition >= WARM_UP:
            out.append(max(rank.gpu.elapsed_ms(a, b) * 1e3 for rank, a, b in zip(ranks, begin, end, strict=True)))
    nccl.close()
    return out


class _TorchRank:
    """One rank's tensors and steps."""

    def __init__(self, torch: Any, grouped: Any, group: ExpertGroup, rank: int) -> None:
        me, s = group.ranks[rank], group.layer.shape
        self._torch, self._grouped, self.rank, self.gpu = torch, grouped, rank, me.gpu
        self._device = torch.device(f"cuda:{me.gpu.index}")
        self._stream = torch.cuda.ExternalStream(me.gpu.stream.ptr, device=self._device)
        real = me.rows.owner != PADDING
        count = int(real.sum())
        self.remote_bytes = int((real & (me.rows.owner != rank)).sum()) * s.hidden * 2
        ends = np.cumsum(np.bincount(me.rows.block_expert, weights=me.rows.block_rows, minlength=group.layer.local_experts))

        def random(*shape: int) -> Any:
            return torch.randn(*shape, device=self._device, dtype=torch.bfloat16)

        self.send, self.receive, self._x = random(count, s.hidden), random(count, s.hidden), random(count, s.hidden)
        self._w1 = random(group.layer.local_experts, 2 * s.inter, s.hidden).transpose(1, 2)
        self._w2 = random(group.layer.local_experts, s.inter, s.hidden)
        self._ends = torch.tensor(ends.astype(np.int32), device=self._device)
        self._weight = torch.rand(group.layer.tokens, s.top_k, 1, device=self._device, dtype=torch.bfloat16)
        self._rows = random(group.layer.tokens, s.top_k, s.hidden)

    def experts(self) -> None:
        torch = self._torch
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            gate, up = self._grouped(self._x, self._w1, offs=self._ends).chunk(2, dim=1)
            self._grouped(torch.nn.functional.silu(gate) * up, self._w2, offs=self._ends)

    def sum_rows(self) -> None:
        with self._torch.cuda.device(self._device), self._torch.cuda.stream(self._stream):
            (self._rows * self._weight).sum(dim=1)
