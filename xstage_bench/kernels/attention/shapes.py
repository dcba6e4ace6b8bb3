"""Attention that is run with sequence parallelism: the diffusion transformers of `workloads.shapes`, and Keye-VL-2.0's heads."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from xstage_bench.workloads.keye_plan import keye
from xstage_bench.workloads.shapes import attention_shapes, find

#: Rows of Keye-VL-2.0 that are measured. Its text model is causal and attends to selected tokens: its head counts are measured here, with
#: full attention.
KEYE_SEQS = (8192, 32768)


@dataclass(frozen=True, slots=True)
class Heads:
    """One attention: heads of queries, and of keys and values, and rows, visual and text together."""

    name: str
    heads: int
    kv_heads: int
    head_dim: int
    seq: int


@cache
def known_heads() -> dict[str, Heads]:
    """Every attention by name."""
    found = [Heads(s.name, s.heads, s.heads, s.head_dim, s.tokens) for s in attention_shapes().values()]
    text = keye()
    found += [Heads(f"keye-vl-2-{seq}", text.heads, text.kv_heads, text.head_dim, seq) for seq in KEYE_SEQS]
    return {one.name: one for one in found}


def heads_named(name: str) -> list[Heads]:
    """Return the attention of this name, or all sizes of the model of this name; `UsageError` names the nearest."""
    known = known_heads()
    sizes = [one for key, one in known.items() if key.startswith(f"{name}-")]
    return [known[name]] if name in known or (not sizes and find(known, name, "attention")) else sizes
