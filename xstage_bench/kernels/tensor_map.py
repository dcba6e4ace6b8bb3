"""Descriptors of the tensors that the fused kernels load and store in boxes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from xstage_bench.device.cuda.tensor_map import Element, encode_tiled

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
    strides = (heads * head_dim * 2, head_dim * 2)
    return encode_tiled("BFLOAT16", address, (head_dim, rows, heads), strides, (_ROW_ELEMENTS, box_rows, 1), promotion="L2_256B")


def boxes(address: int, element_bytes: int, shape: tuple[int, int, int], box: tuple[int, int]) -> NDArray[np.uint64]:
    """Encode a packed tensor of columns, rows and planes that is copied in boxes of columns and rows.

    Parameters
    ----------
    address : int
        Of the first element, a multiple of 16; on this GPU or on a peer.
    element_bytes : int
        1 (any 8-bit type) or 2 (any 16-bit type).
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
    columns, rows, _ = shape
    strides = (columns * element_bytes, columns * rows * element_bytes)
    wide = box[0] * element_bytes == 128
    element: Element = "UINT8" if element_bytes == 1 else "UINT16"
    return encode_tiled(element, address, shape, strides, (*box, 1), swizzle_bytes=128 if wide else 64, promotion="L2_256B")
