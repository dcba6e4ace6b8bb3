"""Descriptors of the bulk tensor copy engine: what the driver encodes, and those of tensor stores and of the fused kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.variant import Variant

TENSOR_MAP_BYTES = 128
COLUMN_BYTES = 2  # bf16
BOX_COLUMNS = 64  # 128 bytes: what the swizzle of the source spans
ROW_BYTES = {"none": BOX_COLUMNS * COLUMN_BYTES, "tile": 2048}  # of the array, by the layout's segments; cuda/layouts.cuh has the same

Element = Literal["BFLOAT16", "UINT8", "UINT16"]


def encode_tiled(
    element: Element,
    address: int,
    shape: Sequence[int],
    strides_bytes: Sequence[int],
    box: Sequence[int],
    *,
    promotion: Literal["NONE", "L2_256B"] = "NONE",
) -> NDArray[np.uint64]:
    """Encode a tensor that is copied in boxes, in shared memory in the swizzle of 128 bytes.

    Parameters
    ----------
    element : {'BFLOAT16', 'UINT8', 'UINT16'}
        The copy engine does not look at values.
    address : int
        Of the first element, a multiple of 16; on this GPU or on a peer.
    shape : sequence of int
        Elements in each dimension, the contiguous one first.
    strides_bytes : sequence of int
        Of every dimension but the first.
    box : sequence of int
        Elements of a box in each dimension.
    promotion : {'NONE', 'L2_256B'}
        How much is brought to the L2 at a time.

    Returns
    -------
    ndarray of uint64, shape (16,)
        For memory aligned to 64 bytes.

    Raises
    ------
    RuntimeError
        The driver refuses it.
    """
    from cuda.bindings import driver

    wide, narrow = driver.cuuint64_t, driver.cuuint32_t
    status, descriptor = driver.cuTensorMapEncodeTiled(
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{element}"),
        len(shape),
        address,
        [wide(n) for n in shape],
        [wide(n) for n in strides_bytes],
        [narrow(n) for n in box],
        [narrow(1)] * len(shape),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        getattr(driver.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{promotion}"),
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if status != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"tensor of {' x '.join(map(str, shape))} {element} at {address:#x}: {status.name}")
    return np.frombuffer(ctypes.string_at(descriptor.getPtr(), TENSOR_MAP_BYTES), dtype=np.uint64)


def encode_tensor_map(address: int, size: int, variant: Variant) -> NDArray[np.uint8]:
    """Describe memory to the tensor stores of a variant: a two-dimensional array of bf16, stored in boxes of 64 columns.

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
    from xstage_bench.schedule.layouts import LAYOUTS

    row = ROW_BYTES[LAYOUTS[variant.layout].segments]
    rows_of_box = variant.flavour.bytes // (BOX_COLUMNS * COLUMN_BYTES)
    shape = (row // COLUMN_BYTES, size // row)
    return encode_tiled("BFLOAT16", address, shape, (row,), (BOX_COLUMNS, rows_of_box)).view(np.uint8)


def rows_of_heads(address: int, head_dim: int, rows: int, heads: int, box_rows: int) -> NDArray[np.uint64]:
    """Encode a bf16 tensor ``[rows, heads, head_dim]``, copied in boxes of `box_rows` rows and 64 columns of one head.

    Coordinates in the order column, row, head; `address` and errors as of `encode_tiled`.
    """
    strides = (heads * head_dim * COLUMN_BYTES, head_dim * COLUMN_BYTES)
    return encode_tiled("BFLOAT16", address, (head_dim, rows, heads), strides, (BOX_COLUMNS, box_rows, 1), promotion="L2_256B")


def boxes(address: int, element_bytes: int, shape: tuple[int, int, int], box: tuple[int, int]) -> NDArray[np.uint64]:
    """Encode a packed tensor of columns, rows and planes, its columns contiguous, copied in boxes of columns and rows.

    `element_bytes`: 1 or 2. A box has rows of 128 bytes, what the swizzle spans; `address` and errors as of `encode_tiled`.
    """
    columns, rows, _ = shape
    strides = (columns * element_bytes, columns * rows * element_bytes)
    return encode_tiled("UINT8" if element_bytes == 1 else "UINT16", address, shape, strides, (*box, 1), promotion="L2_256B")
