// In the place of layouts.cuh for layouts that say of each lane where its bytes go: a function instead of segments (XSTAGE_SEGMENTS is 3).
// A file of its own, so that a new layout does not change the kernels of the others. xstage_bench/schedule/layouts.py is the table.
#pragma once

#include "flavours.cuh"

static constexpr u32 GROUP = 4;  // warp-stores per unrolled group; a burst starts on a group's boundary
static constexpr u32 WARP_STORE_BYTES = 32 * XSTAGE_BYTES, GROUP_BYTES = GROUP * WARP_STORE_BYTES;
static constexpr u32 PIECE_BYTES = XSTAGE_BYTES, PIECES = 32, PIECE_WORDS = PIECE_BYTES / 4;

static __device__ __forceinline__ u32 groups_per_warp(u32 window_bytes, u32 warps) { return window_bytes / warps / GROUP_BYTES; }

#ifdef XSTAGE_OWN_LAYOUT
#include "xstage_own_layout.cuh"
#endif

// As the tensor cores leave an accumulator: four lanes side by side in each of eight rows, then the eight rows below, then the columns to the
// right. The warps share the rows as those of a matrix product do; there are 128 of them in a window. Warps must be a power of two.
static __device__ __forceinline__ u32 place_accumulator(u32 window_bytes, u32 warp, u32 warps, u32 slot, u32 lane) {
  constexpr u32 ROWS = 128, QUAD_BYTES = 4 * PIECE_BYTES;
  const u32 row_bytes = window_bytes / ROWS, blocks = ROWS / 8 / warps;
  slot &= blocks * (row_bytes / QUAD_BYTES) - 1;
  const u32 row = (warp * blocks + (slot & (blocks - 1))) * 8 + lane / 4;
  return row * row_bytes + (slot >> (31 - __clz(blocks))) * QUAD_BYTES + lane % 4 * PIECE_BYTES;
}

// Byte offset, inside the producer's window, of a lane's bytes in warp-store `slot` of a warp.
static __device__ __forceinline__ u32 place(u32 window_bytes, u32 warp, u32 warps, u32 slot, u32 piece) {
  return XSTAGE_PLACE(window_bytes, warp, warps, slot, piece);
}
