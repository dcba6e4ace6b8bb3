"""The layouts of ``cuda/layouts.cuh``, compiled for the CPU: nothing overlaps, nothing leaves the window, shapes are as named."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from xstage_bench.device.cuda.layout import WINDOW_BYTES
from xstage_bench.device.cuda.variant import Variant
from xstage_bench.io.assets import asset_dir
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.layouts import LAYOUTS

MAIN = """
#include <cstdio>
typedef unsigned int u32;
#define __device__
#define __forceinline__ inline
static int __clz(u32 x) { return __builtin_clz(x); }
#define XSTAGE_IS_BULK (XSTAGE_KIND >= 2)
#define XSTAGE_IS_TENSOR (XSTAGE_KIND == 4)
%s
int main() {
  const u32 window = %d;
  for (u32 warps = 1; warps <= 16; warps *= 2) {
    const u32 slots = groups_per_warp(window, warps) * GROUP;
    for (u32 warp = 0; warp < warps; ++warp)
      for (u32 slot = 0; slot < slots; ++slot)
        for (u32 piece = 0; piece < PIECES; ++piece) {
          const u32 row[4] = {warps, slot, place(window, warp, warps, slot, piece), PIECE_BYTES};
          fwrite(row, 4, 4, stdout);
        }
  }
}
"""
CASES = [
    (flavour, layout)
    for flavour, layout in itertools.product(("st.v4", "st.v2", "st.b32", "bulk.256", "bulk.8192", "tensor.2048", "tensor.16384"), LAYOUTS)
    if LAYOUTS[layout].takes(FLAVOURS[flavour])
]


def places(flavour: str, layout: str, folder: Path) -> np.ndarray:
    """Return warps, slot, offset and piece size of everything that one turn of the window writes, from the kernel's own source."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler for the CPU here")
    source = (asset_dir("cuda") / "layouts.cuh").read_text().replace("#pragma once", "").replace('#include "flavours.cuh"', "")
    (folder / "places.cpp").write_text(MAIN % (source, WINDOW_BYTES))
    words = [f"-D{k}={v}" for k, v in Variant(FLAVOURS[flavour], layout).defines().items()]
    subprocess.run([compiler, "-std=c++17", "-O1", *words, "-o", folder / "places", folder / "places.cpp"], check=True)
    raw = subprocess.run([folder / "places"], check=True, capture_output=True).stdout
    return np.frombuffer(raw, np.uint32).reshape(-1, 4)


@pytest.mark.parametrize(("flavour", "layout"), CASES)
def test_no_two_pieces_overlap_and_none_leaves_the_window(flavour: str, layout: str, tmp_path: Path) -> None:
    table = places(flavour, layout, tmp_path)
    size = int(table[0, 3])
    for warps in np.unique(table[:, 0]):
        offsets = np.sort(table[table[:, 0] == warps, 2].astype(np.int64))
        assert offsets[0] >= 0
        assert offsets[-1] + size <= WINDOW_BYTES
        assert (np.diff(offsets) >= size).all(), f"{warps} warps: two pieces overlap"
        assert (offsets % min(size, 16) == 0).all()
        if LAYOUTS[layout].segments != "none":
            assert offsets.size * size == WINDOW_BYTES, "a turn of the window writes all of it"


def test_a_tile_is_128_rows_of_256_bytes_two_kilobytes_apart(tmp_path: Path) -> None:
    table = places("st.v4", "tile128", tmp_path)
    one = table[(table[:, 0] == 4) & (table[:, 1] < 16)]  # four warps, 16 warp-stores each: 32 KB
    rows, columns = one[:, 2] // 2048, one[:, 2] % 2048
    assert sorted(set(rows.tolist())) == list(range(128))
    assert columns.max() < 256


def test_a_box_of_a_tile_is_rows_of_64_columns_and_two_make_a_tile(tmp_path: Path) -> None:
    table = places("tensor.16384", "tile128", tmp_path)
    tile = table[(table[:, 0] == 1) & (table[:, 1] < 2)]
    for box in (0, 1):
        at = tile[tile[:, 1] == box, 2]
        assert set((at // 2048).tolist()) == set(range(128))
        assert set((at % 2048 // 128).tolist()) == {box}


def test_rows_of_a_warp_store_are_far_apart(tmp_path: Path) -> None:
    table = places("st.v4", "rows256", tmp_path)
    one = table[(table[:, 0] == 1)][:, 2].reshape(-1, 32)
    assert (np.diff(one[:, :16], axis=1) == 16).all(), "half a warp writes one row segment"
    apart = np.abs(one[:, 16].astype(np.int64) - one[:, 0])
    assert apart.min() >= 16 * 256


@pytest.mark.parametrize("shift", [16, 32, 64])
def test_shifted_layouts_are_shifted(shift: int, tmp_path: Path) -> None:
    table = places("st.v4", f"offset{shift}", tmp_path)
    assert set((table[:, 2] % 512 - table[:, 2] % 512 // 16 * 16).tolist()) == {0}
    assert (table[table[:, 0] == 1][::32, 2] % 512 == shift).all()


@pytest.mark.parametrize("lanes", [16, 24])
def test_idle_lanes_leave_holes(lanes: int, tmp_path: Path) -> None:
    table = places("st.v4", f"lanes{lanes}", tmp_path)
    assert (table[:, 2] % 512 < lanes * 16).all()
