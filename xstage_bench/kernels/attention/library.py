"""cuDNN's attention through PyTorch, where that is installed: the yardstick for attention alone."""

from __future__ import annotations

from typing import Any

from xstage_bench.errors import WaivedError
from xstage_bench.kernels.attention.rig import Rig
from xstage_bench.kernels.attention.variants import AttentionVariant


def cudnn(rig: Rig) -> AttentionVariant:
    """Scaled dot-product attention of the same shape and kind of inputs on every rank's GPU and stream.

    `WaivedError`: PyTorch is not installed, or its cuDNN refuses the shape.
    """
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError as error:
        raise WaivedError(f"cuDNN's attention is reached through PyTorch: {error}", "pip install torch") from None
    p = rig.problem
    work: list[tuple[Any, ...]] = []
    for rank, gpu in enumerate(rig.gpus):
        generator = torch.Generator(device=f"cuda:{gpu.index}").manual_seed(rank)
        tensors = [
            torch.randn(p.seq, heads, p.head_dim, generator=generator, device=f"cuda:{gpu.index}", dtype=torch.bfloat16).transpose(0, 1)[
                None
            ]
            for heads in (p.local_heads, p.local_kv_heads, p.local_kv_heads)
        ]
        work.append((torch.cuda.ExternalStream(gpu.stream.ptr, device=f"cuda:{gpu.index}"), tensors))

    def queue() -> None:
        for stream, tensors in work:
            with torch.cuda.stream(stream), sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                torch.nn.functional.scaled_dot_product_attention(*tensors, enable_gqa=p.local_heads != p.local_kv_heads)

    for gpu in rig.gpus:
        gpu.synchronize()
    try:
        queue()
    except RuntimeError as error:
        raise WaivedError(f"cuDNN refuses {p.local_heads} heads x {p.seq} x {p.head_dim}: {error}", "compare with another shape") from None
    return AttentionVariant("cudnn", queue, delivers=False)
