"""``issue.cuh`` and ``layouts.cuh`` compiled for the CPU: stores are what the check expects, no layout overlaps or leaves its window."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from kernel_code import run_on_cpu

from xstage_bench.device.cuda.layout import WINDOW_BYTES
from xstage_bench.device.cuda.variant import Variant
from xstage_bench.io.assets import asset_dir
from xstage_bench.schedule.flavour import FLAVOURS
from xstage_bench.schedule.layouts import LAYOUTS

HEAD = """
#include <cstdio>
#include <cstdlib>
#include <cstring>
typedef unsigned int u32;
typedef unsigned long long u64;
// Of the C++ library, which takes longer to read than all of this to compile: what is used here, and no more.
template <class T> T min(T a, T b) { return b < a ? b : a; }
template <class T> struct Array {
  T *at;
  u32 size;
  Array(u32 n, T value) : at((T *)malloc((n ? n : 1) * sizeof(T))), size(n) { fill(0, n, value); }
  ~Array() { free(at); }
  void fill(u32 from, u32 to, T value) { for (u32 i = from; i < to; ++i) at[i] = value; }
  T *data() { return at; }
  T &operator[](u32 i) { if (i >= size) abort(); return at[i]; }
};
struct uint4 { u32 x, y, z, w; };
static uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
#define __device__
#define __forceinline__ inline
static int __clz(u32 x) { return __builtin_clz(x); }
static u32 __float_as_uint(float f) { u32 u; memcpy(&u, &f, 4); return u; }
static float __uint_as_float(u32 u) { float f; memcpy(&f, &u, 4); return f; }
static u64 sm_clock() { return 0; }
static void count_up(u32 &word) { ++word; }
#define XSTAGE_STORE 0
#define XSTAGE_REDUCE 1
#define XSTAGE_BULK 2
#define XSTAGE_BULK_REDUCE 3
#define XSTAGE_TENSOR 4
#define XSTAGE_IS_BULK (XSTAGE_KIND >= 2)
#define XSTAGE_IS_TENSOR (XSTAGE_KIND == 4)
#define XSTAGE_REDUCES (XSTAGE_KIND == 1 || XSTAGE_KIND == 3)
static char shared[1 << 20];
static void put(char *at, u32 word) {
  u32 old;
  memcpy(&old, at, 4);
  if (XSTAGE_REDUCES) word = __float_as_uint(__uint_as_float(old) + __uint_as_float(word));
  memcpy(at, &word, 4);
}
#if XSTAGE_IS_TENSOR
// What the hardware does with a box: rows of 128 bytes, the 16-byte words of each line of shared memory permuted by the line's number.
static void emulated(u64 map, u32 column, u32 row, u32 source) {
  const u32 array_row = XSTAGE_SEGMENTS ? 2048 : 128;
  for (u32 i = 0; i < XSTAGE_BYTES; i += 4) {
    const u32 at = source + i;
    const u32 swizzled = at ^ (at >> 7 & 7) << 4;
    u32 word;
    memcpy(&word, shared + swizzled, 4);
    put((char *)map + (u64)(row + i / 128) * array_row + column * 2 + i % 128, word);
  }
}
static void bulk_commit() {}
static void bulk_source_written() {}
#elif XSTAGE_IS_BULK
static void emulated(char *at, u32 source) {
  for (u32 i = 0; i < XSTAGE_BYTES; i += 4) { u32 word; memcpy(&word, shared + source + i, 4); put(at + i, word); }
}
static void bulk_commit() {}
static void bulk_source_written() {}
#else
static void emulated(char *at, u32 x, u32 y, u32 z, u32 w) {
  const u32 words[4] = {x, y, z, w};
  for (u32 i = 0; i < XSTAGE_BYTES / 4; ++i) put(at + 4 * i, words[i % 4]);
}
#endif
"""

MAIN = """
int main() {
  const u32 window = WINDOW, producer = 5, tag = 0x12345678;
  const u32 bursts[] = BURSTS, several[] = {1, 4};
  u32 wrong = 0, checked = 0;
  for (u32 warps : several) {
    Array<char> memory(window, XSTAGE_REDUCES ? 0 : 0x5a);
    Array<bool> touched(window, false);
    const u32 groups = groups_per_warp(window, warps);
    for (u32 warp = 0; warp < warps; ++warp) {
      Array<u32> last(groups * GROUP, 0), hits(groups * GROUP, 0);
#if XSTAGE_IS_BULK
      for (u32 lane = 0; lane < 32; ++lane) fill_source(shared + warp * SOURCE_BYTES, tag, producer, warp, lane);
#endif
      u32 first = 0;
      for (u32 stores : bursts) {
        for (u32 lane = 0; lane < 32; ++lane) {
          const Pattern p = pattern_of(tag, producer, warp, lane);
#if XSTAGE_IS_TENSOR
          issue((u64)memory.data(), 0, window, warp, warps, first, stores, warp * SOURCE_BYTES, lane, nullptr);
#elif XSTAGE_IS_BULK
          issue(memory.data(), window, warp, warps, first, stores, warp * SOURCE_BYTES, lane, nullptr);
#elif XSTAGE_SEGMENTS
          issue(memory.data(), window, warp, warps, first, stores, p, lane, nullptr);
#else
          issue(memory.data() + warp * groups * GROUP_BYTES + XSTAGE_OFFSET, groups, first, stores, p, lane, nullptr);
#endif
        }
        for (u32 i = 0; i < stores; ++i) {
          const u32 store = first * GROUP + i, slot = store % (groups * GROUP);
          last[slot] = store;
          ++hits[slot];
        }
        first += (stores + GROUP - 1) / GROUP;
      }
      for (u32 slot = 0; slot < groups * GROUP; ++slot)
        for (u32 piece = 0; hits[slot] && piece < PIECES; ++piece) {
          const u32 at = place(window, warp, warps, slot, piece);
          const Pattern p = pattern_of(tag, producer, warp, origin(last[slot], piece));
          for (u32 k = 0; k < PIECE_WORDS; ++k) {
            u32 have;
            memcpy(&have, memory.data() + at + 4 * k, 4);
            wrong += have != expected_word(p, k, last[slot], hits[slot]);
            ++checked;
          }
          touched.fill(at, at + PIECE_BYTES, true);
        }
    }
    for (u32 i = 0; i < window; ++i) wrong += !touched[i] && memory[i] != (XSTAGE_REDUCES ? 0 : 0x5a);
  }
  printf("%u %u", wrong, checked);
}
"""
STORES = ("st.v4", "st.v2", "st.b32", "red.f32", "red.v4.f32")
NAMES = (*STORES, "bulk.128", "bulk.256", "bulk.8192", "bulkred.f32.2048", "tensor.2048", "tensor.16384")
CASES = [(f, y) for f, y in itertools.product(NAMES, LAYOUTS) if LAYOUTS[y].takes(FLAVOURS[f])]


def places_of(layout: str) -> str:
    """The header that says where the bytes of a layout go."""
    return "placements.cuh" if LAYOUTS[layout].function else "layouts.cuh"


def emulate(flavour: str, layout: str, folder: Path, spoil: tuple[str, str] = ("", "")) -> tuple[int, int]:
    """Return how many words are wrong of how many checked, with the kernel's own source but for the replacement `spoil`."""
    cuda = asset_dir("cuda")
    source = "".join((cuda / name).read_text() for name in (places_of(layout), "pattern.cuh", "issue.cuh"))
    source = re.sub(r'#pragma once|#include "\w+\.cuh"', "", source)
    source = source[: source.index("static __device__ __forceinline__ void load_piece")] + source[source.index("// The measured loops.") :]
    if spoil[0]:
        assert spoil[0] in source
        source = source.replace(*spoil)
    bursts = "{3, 0, 70, 1, 5, 2}" if FLAVOURS[flavour].warp_store_bytes >= 2048 else "{3, 0, 2050, 1, 130, 2}"
    text = HEAD + source + MAIN.replace("WINDOW", str(WINDOW_BYTES), 1).replace("BURSTS", bursts, 1)
    wrong, checked = run_on_cpu(text, folder, {**Variant(FLAVOURS[flavour], layout).defines(), "XSTAGE_FLAVOUR": "emulated"}).split()
    return int(wrong), int(checked)


LOOP = "; left > 0; left -= GROUP) {\n    to"


@pytest.mark.parametrize(("flavour", "layout"), CASES)
def test_what_is_stored_is_what_the_check_expects(flavour: str, layout: str, tmp_path: Path) -> None:
    wrong, checked = emulate(flavour, layout, tmp_path)
    assert checked > 10_000
    assert wrong == 0


@pytest.mark.parametrize(
    ("flavour", "layout", "spoil"),
    [
        ("st.v4", "contiguous", ("if (to == last) to = first;", "if (to == last) to = first + GROUP_BYTES;")),
        ("st.v4", "contiguous", ("to == last) to = first;\n    if (!XSTAGE_REDUCES) count_up(x);", "to == last) to = first;")),
        ("st.b32", "rows256", ("slot += GROUP;", "slot += GROUP - 1;")),
        ("bulk.256", "contiguous", ("if (from == last) from = source;", "")),
        ("bulk.256", "tile128", ("from += STEP_BYTES;", "")),
        ("tensor.2048", "tile128", ("(piece % 8 ^ line % 8)", "piece % 8")),
        ("tensor.16384", "contiguous", ("box % BOXES_DEEP * BOX_ROWS, from", "box * BOX_ROWS / 2, from")),
        ("red.f32", "contiguous", (f"left = own{LOOP}", f"left = own - 4 * (own > 100){LOOP}")),
    ],
)
def test_a_loop_that_goes_wrong_is_found_out(flavour: str, layout: str, spoil: tuple[str, str], tmp_path: Path) -> None:
    wrong, _ = emulate(flavour, layout, tmp_path, spoil)
    assert wrong > 0


PLACES = """
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


def places(flavour: str, layout: str, folder: Path) -> np.ndarray:
    """Return warps, slot, offset and piece size of everything that one turn of the window writes, from the kernel's own source."""
    source = (asset_dir("cuda") / places_of(layout)).read_text().replace("#pragma once", "").replace('#include "flavours.cuh"', "")
    raw = run_on_cpu(PLACES % (source, WINDOW_BYTES), folder, Variant(FLAVOURS[flavour], layout).defines())
    return np.frombuffer(raw, np.uint32).reshape(-1, 4).astype(np.int64)


@pytest.mark.parametrize(("flavour", "layout"), [case for case in CASES if "red" not in case[0]])
def test_no_two_pieces_overlap_and_none_leaves_the_window(flavour: str, layout: str, tmp_path: Path) -> None:
    table = places(flavour, layout, tmp_path)
    size = int(table[0, 3])
    for warps in np.unique(table[:, 0]):
        offsets = np.sort(table[table[:, 0] == warps, 2])
        assert offsets[0] >= 0
        assert offsets[-1] + size <= WINDOW_BYTES
        assert (np.diff(offsets) >= size).all(), f"{warps} warps: two pieces overlap"
        assert (offsets % min(size, 16) == 0).all()
        if LAYOUTS[layout].segments != "none":
            assert offsets.size * size == WINDOW_BYTES, "a turn of the window writes all of it"


def test_shapes_are_as_named(tmp_path: Path) -> None:
    tile = places("st.v4", "tile128", tmp_path)
    at = tile[(tile[:, 0] == 4) & (tile[:, 1] < 16), 2]  # four warps, 16 warp-stores each: 32 KB
    assert set(at // 2048) == set(range(128)), "128 rows, two kilobytes apart"
    assert (at % 2048).max() < 256

    fragment = places("st.b32", "accumulator", tmp_path)
    at = fragment[(fragment[:, 0] == 4) & (fragment[:, 1] < 4), 2].reshape(4, 4, 8, 4)  # warp, warp-store, row, lane
    assert (np.diff(at, axis=3) == 4).all(), "four lanes side by side"
    assert (np.diff(at, axis=2) == 2048).all(), "in eight rows"
    assert (np.diff(at[:, :, 0, 0], axis=1) == 8 * 2048).all(), "then the eight rows below"

    boxes = places("tensor.16384", "tile128", tmp_path)
    for box in (0, 1):
        at = boxes[(boxes[:, 0] == 1) & (boxes[:, 1] == box), 2]
        assert set(at // 2048) == set(range(128))
        assert set(at % 2048 // 128) == {box}, "a box is rows of 64 columns, and two make a tile"

    rows = places("st.v4", "rows256", tmp_path)
    one = rows[rows[:, 0] == 1, 2].reshape(-1, 32)
    assert (np.diff(one[:, :16], axis=1) == 16).all(), "half a warp writes one row segment"
    assert np.abs(one[:, 16] - one[:, 0]).min() >= 16 * 256

    for shift in (16, 32, 64):
        shifted = places("st.v4", f"offset{shift}", tmp_path)
        assert (shifted[:, 2] % 16 == 0).all()
        assert (shifted[shifted[:, 0] == 1][::32, 2] % 512 == shift).all()
    for lanes in (16, 24):
        assert (places("st.v4", f"lanes{lanes}", tmp_path)[:, 2] % 512 < lanes * 16).all(), "idle lanes leave holes"
