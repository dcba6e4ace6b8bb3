"""FP8 result rows: the fixed scale is enough, and a row's codes lie in the order that the host undoes."""

from __future__ import annotations

import numpy as np
import pytest

from xstage_bench.kernels.moe.numbers import FP8_ORDER, RESULT_SCALE, tolerance


def e4m3(values: np.ndarray) -> np.ndarray:
    """Round to e4m3 as `cvt.rn.satfinite` does: 3 bits of mantissa, exponents -6 to 8, 448 the largest."""
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(values), 1e-30))), -6)
    step = 2.0 ** (exponent - 3)
    return np.clip(np.rint(values / step) * step, -448, 448)


@pytest.mark.parametrize("size", [1 / 16, 1.0, 4.0])
def test_the_fixed_scale_costs_nothing(size: float) -> None:
    rows = np.random.default_rng(0).normal(size=200_000) * 0.6 * size
    found = e4m3(rows / RESULT_SCALE) * RESULT_SCALE
    error = np.linalg.norm(found - rows) / np.linalg.norm(rows)
    assert error == pytest.approx(0.0266, abs=0.0005)
    assert error < tolerance("bf16", "fp8")


def test_the_tolerance_is_that_of_the_coarser_side() -> None:
    assert tolerance("bf16", "bf16") == tolerance("bf16", "f32") == 1e-2
    assert tolerance("fp8", "f32") == tolerance("bf16", "fp8") == tolerance("fp8", "fp8") == 6e-2


def test_the_codes_lie_as_a_thread_holds_them() -> None:
    """Thread q of a quad holds columns 8 j + 2 q and the next one of each group j; its four of 16 columns become one word."""
    word = [[8 * group + 2 * q + e for group in (0, 1) for e in (0, 1)] for q in range(4)]
    assert FP8_ORDER.tolist() == [column for four in word for column in four]
    row = np.arange(16)
    assert (row[FP8_ORDER][np.argsort(FP8_ORDER)] == row).all()
