// Where operation `slot` of a warp goes inside its producer's window, and which lanes take part. The same function places and verifies.
//
// A *piece* is what is placed and checked at once: the bytes of one lane, or 16 bytes of a bulk copy. xstage_bench/schedule/layouts.py is the table.
#pragma once

#include "flavours.cuh"

#ifndef XSTAGE_ACTIVE_LANES
#define XSTAGE_ACTIVE_LANES 32
#endif
#ifndef XSTAGE_OFFSET
#define XSTAGE_OFFSET 0
#endif
#ifndef XSTAGE_SEGMENTS  // 0 none, 1 rows, 2 tile
#define XSTAGE_SEGMENTS 0
#endif

#if XSTAGE_IS_BULK
static constexpr u32 GROUP = 1;
static constexpr u32 WARP_STORE_BYTES = XSTAGE_BYTES;
static constexpr u32 PIECE_BYTES = 16;
static constexpr u32 PIECES = XSTAGE_BYTES / 16;
#else
static constexpr u32 GROUP = 4;  // warp-stores per unrolled group; a burst starts on a group's boundary
static constexpr u32 WARP_STORE_BYTES = 32 * XSTAGE_BYTES;
static constexpr u32 PIECE_BYTES = XSTAGE_BYTES;
static constexpr u32 PIECES = XSTAGE_ACTIVE_LANES;
#endif
static constexpr u32 GROUP_BYTES = GROUP * WARP_STORE_BYTES;
static constexpr u32 PIECE_WORDS = PIECE_BYTES / 4;
static constexpr u32 SEGMENT_BYTES = 256;
static constexpr u32 TILE_ROWS = 128, ROW_SEGMENTS = 8;  // 128 rows of 2 KB: eight tiles side by side fill a window of 256 KB
static constexpr u32 SCATTER = 405;                      // odd: a permutation of a power of two of segments
#if XSTAGE_IS_TENSOR
// A box has the columns that a swizzle of 128 bytes spans, 64 bf16, so a tile of 128 x 128 is two boxes side by side. `contiguous` is an array
// of that width.
static constexpr u32 BOX_ROW_BYTES = 128, BOX_COLUMNS = 64, BOX_ROWS = XSTAGE_BYTES / BOX_ROW_BYTES;
static constexpr u32 ARRAY_ROW_BYTES = XSTAGE_SEGMENTS ? ROW_SEGMENTS * SEGMENT_BYTES : BOX_ROW_BYTES;
static constexpr u32 BOXES_DEEP = XSTAGE_SEGMENTS ? TILE_ROWS / BOX_ROWS : 0xffffffffu;  // above each other in a column of the window
#endif

// Groups of one warp inside its producer's window; bursts longer than that wrap around. A shifted layout leaves one group free.
static __device__ __forceinline__ u32 groups_per_warp(u32 window_bytes, u32 warps) {
  return window_bytes / warps / GROUP_BYTES - (XSTAGE_OFFSET ? 1 : 0);
}

#if XSTAGE_SEGMENTS && !XSTAGE_IS_TENSOR
// Cell (256 bytes of the window) of segment `j` of a warp; j wraps around in the warp's share. Warps must be a power of two.
static __device__ __forceinline__ u32 cell_of(u32 window_bytes, u32 warp, u32 warps, u32 j) {
  const u32 cells = window_bytes / SEGMENT_BYTES, mine = cells / warps;
#if XSTAGE_SEGMENTS == 1
  return ((warp * mine + (j & (mine - 1))) * SCATTER) & (cells - 1);
#else
  const u32 rows = TILE_ROWS / warps;  // of each tile; its warps share a tile as those of an attention kernel do
  j &= mine - 1;
  return (warp * rows + (j & (rows - 1))) * ROW_SEGMENTS + (j >> (31 - __clz(rows)));
#endif
}
#endif

// Byte offset, inside the producer's window, of a piece of operation `slot` of a warp.
static __device__ __forceinline__ u32 place(u32 window_bytes, u32 warp, u32 warps, u32 slot, u32 piece) {
#if XSTAGE_IS_TENSOR
  const u32 box = warp * groups_per_warp(window_bytes, warps) + slot, row = box % BOXES_DEEP * BOX_ROWS + piece / 8;
  return row * ARRAY_ROW_BYTES + box / BOXES_DEEP * BOX_ROW_BYTES + piece % 8 * PIECE_BYTES;
#else
  const u32 byte = slot * WARP_STORE_BYTES + piece * PIECE_BYTES;
#if XSTAGE_SEGMENTS
  return cell_of(window_bytes, warp, warps, byte / SEGMENT_BYTES) * SEGMENT_BYTES + byte % SEGMENT_BYTES;
#else
  return warp * groups_per_warp(window_bytes, warps) * GROUP_BYTES + byte + XSTAGE_OFFSET;
#endif
#endif
}
