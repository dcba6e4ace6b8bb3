"""Descriptors of the bulk tensor copy engine, encoded by the driver."""

from __future__ import annotations

import ctypes

import numpy as np
from numpy.typing import NDArray

_ROW_ELEMENTS = 64  # 128 bytes: the widest swizzle


def rows_of_heads(address: int, head_dim: int, rows: int, heads: int, box_rows: int) -> NDArray[np.uint64]:
    """Encode a bf16 tensor ``[rows, heads, head_dim]`` that is copied in boxes of `box_rows` rows and 64 columns of one head.

    Parameters
    ----------
    address : int
        Of the first element, a multiple of 16; on this GPU or on a peer.

    Returns
    -------
    ndarray of uint64, shape (16,)
        The descriptor, coordinates in the order column, row, head.

    Raises
    ------
    RuntimeError
        The driver rejects the tensor.
    """
    from cuda.bindings import driver

    u32, u64 = driver.cuuint32_t, driver.cuuint64_t
    status, descriptor = driver.cuTensorMapEncodeTiled(
        driver.CUtensorMapDataType.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        3,
        address,
        [u64(n) for n in (head_dim, rows, heads)],
        [u64(n) for n in (heads * head_dim * 2, head_dim * 2)],
        [u32(n) for n in (_ROW_ELEMENTS, box_rows, 1)],
        [u32(1)] * 3,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"tensor of {rows} rows, {heads} heads, {head_dim} columns at {address:#x}: {status.name}")
    return np.frombuffer(ctypes.string_at(descriptor.getPtr(), 128), dtype=np.uint64)


def boxes(address: int, element_bytes: int, shape: tuple[int, int, int], box: tuple[int, int]) -> NDArray[np.uint64]:
    """Encode a packed tensor of columns, rows and planes that is copied in boxes of columns and rows.

    Parameters
    ----------
    address : int
        Of the first element, a multiple of 16; on this GPU or on a peer.
    element_bytes : int
        1 (any 8-bit type) or 2 (any 16-bit type): the copy engine does not look at values.
    shape : tuple of int
        Columns, rows, planes; the columns lie together.
    box : tuple of int
        Columns and rows of a box. Rows of a box of 128 bytes have the 128-byte swizzle, of 64 bytes the 64-byte one.

    Returns
    -------
    ndarray of uint64, shape (16,)

    Raises
    ------
    RuntimeError
        The driver rejects the tensor.
    """
    from cuda.bindings import driver

    u32, u64 = driver.cuuint32_t, driver.cuuint64_t
    kinds, swizzles = driver.CUtensorMapDataType, driver.CUtensorMapSwizzle
    columns, rows, planes = shape
    wide = box[0] * element_bytes == 128
    status, descriptor = driver.cuTensorMapEncodeTiled(
        kinds.CU_TENSOR_MAP_DATA_TYPE_UINT8 if element_bytes == 1 else kinds.CU_TENSOR_MAP_DATA_TYPE_UINT16,
        3,
        address,
        [u64(n) for n in (columns, rows, planes)],
        [u64(n) for n in (columns * element_bytes, columns * rows * element_bytes)],
        [u32(n) for n in (*box, 1)],
        [u32(1)] * 3,
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        swizzles.CU_TENSOR_MAP_SWIZZLE_128B if wide else swizzles.CU_TENSOR_MAP_SWIZZLE_64B,
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"tensor of {planes} x {rows} x {columns} at {address:#x}: {status.name}")
    return np.frombuffer(ctypes.string_at(descriptor.getPtr(), 128), dtype=np.uint64)
