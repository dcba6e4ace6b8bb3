"""What the driver is asked to encode for each tensor, by a driver that only listens."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

driver = pytest.importorskip("cuda.bindings.driver")

from xstage_bench.device.cuda.tensor_map import boxes, encode_tensor_map, rows_of_heads  # noqa: E402
from xstage_bench.device.cuda.variant import Variant  # noqa: E402
from xstage_bench.schedule.flavour import FLAVOURS  # noqa: E402


class Descriptor:
    def __init__(self) -> None:
        self.words = (ctypes.c_uint64 * 16)(*range(16))

    def getPtr(self) -> int:  # noqa: N802 - the driver's name
        return ctypes.addressof(self.words)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []

    def listen(element: Any, rank: int, address: int, *more: Any) -> tuple[Any, Descriptor]:
        shape, strides, box, steps = ([int(n) for n in values] for values in more[:4])
        assert rank == len(shape) == len(strides) + 1 == len(box) == len(steps)
        assert set(steps) == {1}
        assert address % 16 == 0
        seen.append({"element": element.name, "shape": shape, "strides": strides, "box": box, "swizzle": more[5].name})
        return driver.CUresult.CUDA_SUCCESS, Descriptor()

    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", listen)
    return seen


def test_boxes_span_a_swizzle(asked: list[dict[str, Any]]) -> None:
    assert boxes(4096, 2, (128, 300, 4), (64, 128)).tolist() == list(range(16))
    boxes(4096, 1, (256, 300, 1), (128, 16))
    wide, narrow = asked
    assert wide["element"].endswith("UINT16")
    assert (wide["shape"], wide["strides"], wide["box"]) == ([128, 300, 4], [256, 76800], [64, 128, 1])
    assert wide["swizzle"].endswith("128B")
    assert narrow["element"].endswith("UINT8")
    assert narrow["box"] == [128, 16, 1]
    rows_of_heads(64, 128, 77, 3, 16)  # heads lie between rows
    assert (asked[2]["strides"], asked[2]["shape"]) == ([3 * 128 * 2, 128 * 2], [128, 77, 3])


@pytest.mark.parametrize(("layout", "columns"), [("contiguous", 64), ("tile128", 1024)])
@pytest.mark.parametrize("flavour", ["tensor.2048", "tensor.8192", "tensor.16384"])
def test_a_flavours_box_is_its_bytes(asked: list[dict[str, Any]], flavour: str, layout: str, columns: int) -> None:
    size = 1 << 24
    assert encode_tensor_map(1 << 20, size, Variant(FLAVOURS[flavour], layout)).nbytes == 128
    (one,) = asked
    assert one["box"][0] * one["box"][1] * 2 == FLAVOURS[flavour].bytes
    assert one["shape"][0] == columns
    assert one["shape"][0] * one["shape"][1] * 2 == size


def test_a_refusal_names_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuTensorMapEncodeTiled", lambda *a: (driver.CUresult.CUDA_ERROR_INVALID_VALUE, None))
    with pytest.raises(RuntimeError, match=r"tensor of 128 x 300 x 4 UINT16 at 0x1000: CUDA_ERROR_INVALID_VALUE"):
        boxes(4096, 2, (128, 300, 4), (64, 128))
