"""Tokens and weights of a layer on the GPU, and the same layer in float32: what the kernel's rows are compared with.

Arrays are CuPy's and hold the kernel's own encodings: bf16 as uint16, e4m3 as uint8. A scale belongs to each token, each activation row
and each column of a weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from xstage_bench.kernels.moe.layer import IntArray, Layer

#: Relative error above which a row is wrong, by type of the operands, or of the row where that is coarser.
TOLERANCE = {"bf16": 1e-2, "fp8": 6e-2}
#: A thread's order of 16 FP8 columns, of activations and of result rows: groups of eight in pairs (cuda/moe_epilogue.cuh).
FP8_ORDER = np.array([8 * (i // 2 % 2) + 2 * (i // 4) + i % 2 for i in range(16)])
#: Of e4m3 result rows, one for the layer, fixed in advance like the activations': a row's RMS of 0.6 becomes 10. From there 45 RMS saturate
#: and what is below RMS / 640 loses bits, so rows 4 times as large or 16 times as small are as exact. A power of two rounds nothing.
RESULT_SCALE = 1.0 / 16
_E4M3_LARGEST = 448.0


@dataclass(frozen=True, slots=True)
class Weights:
    """One rank's experts, as the kernel reads them, and a scale of each row of theirs.

    `w1`, shape (experts, 2 inter, hidden): gate and up interleaved, of 16 rows 8 gate and 8 up. `w2`, shape (experts, hidden, inter): of
    FP8, columns in `FP8_ORDER` within each 16.
    """

    w1: Any
    w2: Any
    w1_scale: Any
    w2_scale: Any


def make_tokens(layer: Layer, owner: int) -> tuple[Any, Any]:
    """Return an owner's tokens, shape (tokens, hidden), and their scales, (tokens,); the same on every GPU."""
    import cupy

    rng = cupy.random.RandomState(layer.seed * 1000 + owner)
    return _random(rng, (layer.tokens, layer.shape.hidden), layer.dtype, 1.0), _scales(rng, (layer.tokens,), layer.dtype)


def make_weights(layer: Layer, rank: int) -> Weights:
    """Return a rank's weights, of a size that keeps results near one."""
    import cupy

    s, n = layer.shape, layer.local_experts
    rng = cupy.random.RandomState(layer.seed * 1000 + 500 + rank)
    return Weights(
        w1=_random(rng, (n, 2 * s.inter, s.hidden), layer.dtype, s.hidden**-0.5),
        w2=_random(rng, (n, s.hidden, s.inter), layer.dtype, s.inter**-0.5),
        w1_scale=_scales(rng, (n, 2 * s.inter), layer.dtype, s.hidden**-0.5),
        w2_scale=_scales(rng, (n, s.hidden), layer.dtype, s.inter**-0.5),
    )


def activation_scales(layer: Layer, rows: int) -> Any:
    """Scale of each activation row, fixed in advance as a deployment's calibration would; shape (rows,)."""
    import cupy

    return cupy.full(rows, 8.0 / _E4M3_LARGEST if layer.dtype == "fp8" else 1.0, dtype=cupy.float32)


def decode(values: Any) -> Any:
    """Return float32 of bf16 (uint16) or e4m3 (uint8) encodings."""
    import cupy

    if values.dtype == cupy.uint16:
        return (values.astype(cupy.uint32) << 16).view(cupy.float32)
    return cupy.asarray(_e4m3_table())[values]


def decode_rows(rows: Any) -> Any:
    """Return float32 of result rows, shape (rows, hidden), of any type that the kernel can send."""
    if rows.dtype == np.float32:
        return rows
    values = decode(rows)
    if rows.dtype == np.uint8:
        values = values.reshape(len(rows), -1, 16)[:, :, np.argsort(FP8_ORDER)].reshape(rows.shape) * np.float32(RESULT_SCALE)
    return values


def tolerance(dtype: str, combine: str) -> float:
    """Return the relative error above which a result row of type `combine` is wrong."""
    return max(TOLERANCE[dtype], TOLERANCE["fp8" if combine == "fp8" else "bf16"])


def expected_rows(layer: Layer, gathered: Any, row_scale: Any, weights: Weights, expert: int, mine: IntArray) -> Any:
    """Return what some rows of one expert must become, float32, shape (rows, hidden)."""
    import cupy

    s = layer.shape
    x = decode(gathered[mine]) * row_scale[mine, None]
    both = x @ (decode(weights.w1[expert]) * weights.w1_scale[expert][:, None]).T
    parts = both.reshape(len(x), s.inter // 8, 2, 8)
    gate, up = parts[:, :, 0].reshape(len(x), s.inter), parts[:, :, 1].reshape(len(x), s.inter)
    act = gate / (1 + cupy.exp(-gate)) * up
    w2 = decode(weights.w2[expert]) * weights.w2_scale[expert][:, None]
    if layer.dtype == "fp8":
        scale = activation_scales(layer, 1)
        act = _round_e4m3(act / scale) * scale
        act = act.reshape(len(x), -1, 16)[:, :, FP8_ORDER].reshape(len(x), s.inter)
    else:
        act = decode(_round_bf16(act))
    return act @ w2.T


def _random(rng: Any, shape: tuple[int, ...], dtype: str, size: float) -> Any:
    import cupy

    out = cupy.empty(shape, dtype=cupy.uint8 if dtype == "fp8" else cupy.uint16)
    for part in out.reshape(shape[0], -1) if len(shape) == 3 else (out,):  # an expert at a time: the float32 would not fit at once
        if dtype == "fp8":
            # Exponents of a few octaves around one; the scales bring them to size.
            part[...] = (rng.randint(0x28, 0x40, part.shape) | rng.randint(0, 2, part.shape) << 7).astype(cupy.uint8)
        else:
            part[...] = _round_bf16(rng.standard_normal(part.shape, dtype=cupy.float32) * cupy.float32(size))
    return out


def _scales(rng: Any, shape: tuple[int, ...], dtype: str, size: float = 1.0) -> Any:
    import cupy

    if dtype != "fp8":
        return cupy.ones(shape, dtype=cupy.float32)
    return rng.uniform(0.5, 1.5, shape).astype(cupy.float32) * cupy.float32(size)


def _round_bf16(values: Any) -> Any:
    import cupy

    bits = values.astype(cupy.float32).view(cupy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(cupy.uint16)


def _round_e4m3(values: Any) -> Any:
    """Round to the nearest e4m3 value, ties to even, saturating."""
    import cupy

    clipped = cupy.clip(values, -_E4M3_LARGEST, _E4M3_LARGEST)
    exponent = cupy.maximum(cupy.floor(cupy.log2(cupy.maximum(cupy.abs(clipped), 1e-30))), -6.0)
    step = cupy.exp2(exponent - 3.0)
    return cupy.rint(clipped / step) * step


def _e4m3_table() -> np.ndarray[Any, np.dtype[np.float32]]:
    code = np.arange(256)
    sign, exponent, mantissa = np.where(code & 0x80, -1.0, 1.0), code >> 3 & 15, code & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)
    value = sign * np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    value[(code & 0x7F) == 0x7F] = np.nan
    return value.astype(np.float32)
