"""Attention of models that are run with sequence parallelism: heads, head dimension and sequence lengths, from their public configurations."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from xstage_bench.errors import UsageError


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """One model's attention, non-causal.

    Attributes
    ----------
    name : str
    heads, kv_heads : int
        Of queries, and of keys and values.
    head_dim : int
    seqs : tuple of int
        Rows: visual tokens plus joined text, of each resolution.
    """

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    seqs: tuple[int, ...]


def _dit(name: str, heads: int, *seqs: int, head_dim: int = 128) -> AttentionShape:
    return AttentionShape(name, heads, heads, head_dim, seqs)


#: By name. Keye-VL-2.0's text model is causal and sparse; its head counts are measured here with full attention.
SHAPES: dict[str, AttentionShape] = {
    shape.name: shape
    for shape in (
        _dit("wan-1.3b", 12, 32760),
        _dit("wan-14b", 40, 32760, 75600),
        _dit("wan2.2-5b", 24, 27280),
        _dit("hunyuanvideo", 24, 67320 + 256, 118800 + 256),
        _dit("hunyuanvideo-1.5", 16, 49290, 111600),
        _dit("flux.1", 24, 4096 + 512, 16384 + 512),
        _dit("flux.2-dev", 48, 4096 + 512),
        _dit("qwen-image", 24, 4096, 6889),
        _dit("cogvideox-5b", 48, 17550 + 226, head_dim=64),
        _dit("ltx-video-13b", 32, 7392),
        _dit("ltx-2", 32, 6144, 32640),
        _dit("step-video", 48, 75888),
        _dit("sd3.5-medium", 24, 4096 + 333, head_dim=64),
        AttentionShape("keye-vl-2", 32, 4, 128, (8192, 32768)),
    )
}


def shape_named(name: str) -> AttentionShape:
    """Return a shape; `UsageError` names the nearest one."""
    if name not in SHAPES:
        near = difflib.get_close_matches(name, SHAPES, n=1)
        raise UsageError(f"no shape '{name}'", f"did you mean '{near[0]}'?" if near else f"use one of: {', '.join(SHAPES)}")
    return SHAPES[name]
