"""Rates of what an SM does besides storing: tensor cores and local memory, from the tables beside this module."""

from __future__ import annotations

from functools import cache
from typing import Literal

import msgspec

from xstage_bench.workloads.shapes import find, read_shapes

Dtype = Literal["bf16", "fp8"]
#: Bytes of one element of each type.
ELEMENT_BYTES: dict[str, int] = {"bf16": 2, "fp8": 1}


class TensorCoreRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Useful FLOP/s of one SM, where the number comes from, and whether it was measured on the node that is asked about."""

    name: str = ""
    flops_per_sm: float
    status: Literal["measured", "assumed"]
    source: str


@cache
def _table() -> dict[str, TensorCoreRate]:
    return read_shapes("tensor_core.toml", TensorCoreRate)


def tensor_core_rate(dtype: str, work: Literal["gemm", "attention"] = "gemm") -> TensorCoreRate:
    """Return the rate of this kind of work with operands of this type.

    Raises
    ------
    UsageError
        Neither ``bf16`` nor ``fp8``.
    """
    return find({dtype: _table()[f"{work}-{dtype}"] for dtype in ELEMENT_BYTES}, dtype, "type of element")


class MemoryRate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """GB/s of all SMs together, where the number comes from, and whether it was measured."""

    name: str = ""
    gb_per_s: float
    status: Literal["measured", "assumed"]
    source: str


@cache
def memory_rates() -> dict[str, MemoryRate]:
    """``l2`` and ``hbm``."""
    return read_shapes("memory.toml", MemoryRate)
