"""The descriptor that a bulk tensor store needs: the destination as a two-dimensional array of bf16, stored in boxes of 64 columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.variant import Variant

TENSOR_MAP_BYTES = 128
COLUMN_BYTES = 2  # bf16
BOX_COLUMNS = 64  # 128 bytes: what the swizzle of the source spans
ROW_BYTES = {"none": BOX_COLUMNS * COLUMN_BYTES, "tile": 2048}  # of the array, by the layout's segments; cuda/layouts.cuh has the same


def encode_tensor_map(address: int, size: int, variant: Variant) -> NDArray[np.uint8]:
    """Describe memory to the tensor stores of a variant.

    Parameters
    ----------
    address, size : int
        Memory that the GPU can reach, its own or a peer's; `size` in bytes.
    variant : Variant
        Of a flavour of kind ``tensor``.

    Returns
    -------
    ndarray of uint8, shape (128,)
        For device memory aligned to 64 bytes.

    Raises
    ------
    RuntimeError
        The driver refuses it.
    """
    from cuda.bindings import driver

    from xstage_bench.layouts import LAYOUTS

    row = ROW_BYTES[LAYOUTS[variant.layout].segments]
    rows_of_box = variant.flavour.bytes // (BOX_COLUMNS * COLUMN_BYTES)
    wide, narrow = driver.cuuint64_t, driver.cuuint32_t
    status, encoded = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        2,
        address,
        [wide(row // COLUMN_BYTES), wide(size // row)],
        [wide(row)],
        [narrow(BOX_COLUMNS), narrow(rows_of_box)],
        [narrow(1), narrow(1)],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"cuTensorMapEncodeTiled for {variant.flavour.name}, {variant.layout}: {status.name}")
    return np.array([int(word) for word in encoded.opaque], dtype=np.uint64).view(np.uint8)
