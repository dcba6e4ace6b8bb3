// The measured loops. Their unrolling is part of the instrument (docs/method.md): groups of four warp-stores, then single ones. A layout of
// segments computes each address, which costs a few instructions more; bulk copies are started one by one by lane 0.
#pragma once

#include "pattern.cuh"

#ifdef XSTAGE_TIMELINE
#define XSTAGE_MARK() \
  if (lane == 0 && at < TIMELINE_STORES) timeline[at] = (u32)(sm_clock() - start); \
  ++at;
#else
#define XSTAGE_MARK()
#endif

static constexpr u32 TIMELINE_STORES = 128;

#if XSTAGE_IS_BULK
// Every warp's part of the source buffer: one operation and the steps of its origin.
static constexpr u32 STEP_BYTES = BULK_STEP_PIECES * PIECE_BYTES;
static constexpr u32 SOURCE_ALIGNMENT = XSTAGE_IS_TENSOR ? 1024 : 128;  // the swizzle's period
static constexpr u32 SOURCE_BYTES = (WARP_STORE_BYTES + (BULK_SOURCES - 1) * STEP_BYTES + SOURCE_ALIGNMENT - 1) / SOURCE_ALIGNMENT * SOURCE_ALIGNMENT;

static __device__ void fill_source(char *source, u32 tag, u32 producer, u32 warp, u32 lane) {
  for (u32 i = lane; i < SOURCE_BYTES / PIECE_BYTES; i += 32) {
    const Pattern p = pattern_of(tag, producer, warp, i);
    *reinterpret_cast<uint4 *>(source + i * PIECE_BYTES) = make_uint4(p.x, p.y, p.z, p.w);
  }
  bulk_source_written();
}

#if XSTAGE_IS_TENSOR
// `row`: where the producer's window begins in the array of the map.
static __device__ __forceinline__ void issue(u64 map, u32 row, u32 window_bytes, u32 warp, u32 warps, u32 first, u32 stores, u32 source, u32 lane,
                                             u32 *timeline, u64 &start, u64 &end) {
  const u32 turn = groups_per_warp(window_bytes, warps), before = warp * turn;
  u32 slot = first % turn;
  u32 from = source + first % BULK_SOURCES * STEP_BYTES;
  const u32 last = source + BULK_SOURCES * STEP_BYTES;
#ifdef XSTAGE_TIMELINE
  u32 at = 0;
#endif
  start = sm_clock();
  if (lane == 0) {
#pragma unroll 1
    for (; stores; --stores) {
      const u32 box = before + slot;
      XSTAGE_FLAVOUR(map, box / BOXES_DEEP * BOX_COLUMNS, row + box % BOXES_DEEP * BOX_ROWS, from);
      bulk_commit();
      XSTAGE_MARK()
      from += STEP_BYTES;
      if (from == last) from = source;
      if (++slot == turn) slot = 0;
    }
  }
  end = sm_clock();
}
#else
static __device__ __forceinline__ void issue(char *window, u32 window_bytes, u32 warp, u32 warps, u32 first, u32 stores, u32 source, u32 lane,
                                             u32 *timeline, u64 &start, u64 &end) {
  const u32 turn = groups_per_warp(window_bytes, warps);
  u32 slot = first % turn;
  u32 from = source + first % BULK_SOURCES * STEP_BYTES;
  const u32 last = source + BULK_SOURCES * STEP_BYTES;
  char *to = window + (XSTAGE_SEGMENTS ? 0 : place(window_bytes, warp, warps, slot, 0));
#ifdef XSTAGE_TIMELINE
  u32 at = 0;
#endif
  start = sm_clock();
  if (lane == 0) {
#pragma unroll 1
    for (; stores; --stores) {
#if XSTAGE_SEGMENTS
      XSTAGE_FLAVOUR(to + place(window_bytes, warp, warps, slot, 0), from);
#else
      XSTAGE_FLAVOUR(to, from);
#endif
      bulk_commit();
      XSTAGE_MARK()
      from += STEP_BYTES;
      if (from == last) from = source;
      to += XSTAGE_SEGMENTS ? 0 : WARP_STORE_BYTES;
      if (++slot == turn) {
        slot = 0;
        if (!XSTAGE_SEGMENTS) to -= turn * WARP_STORE_BYTES;
      }
    }
  }
  end = sm_clock();
}
#endif
#elif XSTAGE_SEGMENTS
static __device__ __forceinline__ void issue(char *window, u32 window_bytes, u32 warp, u32 warps, u32 first_group, u32 stores, Pattern p, u32 lane,
                                             u32 *timeline, u64 &start, u64 &end) {
  u32 slot = first_group * GROUP;
  u32 x = p.x + (XSTAGE_REDUCES ? 0 : slot);
  u32 whole = stores / GROUP, rest = stores % GROUP;
#ifdef XSTAGE_TIMELINE
  u32 at = 0;
#endif
  start = sm_clock();
#pragma unroll 1
  for (; whole; --whole) {
#pragma unroll
    for (u32 i = 0; i < GROUP; ++i) {
      XSTAGE_FLAVOUR(window + place(window_bytes, warp, warps, slot + i, lane), x + (XSTAGE_REDUCES ? 0 : i), p.y, p.z, p.w);
      XSTAGE_MARK()
    }
    x += XSTAGE_REDUCES ? 0 : GROUP;
    slot += GROUP;
  }
#pragma unroll 1
  for (; rest; --rest) {
    XSTAGE_FLAVOUR(window + place(window_bytes, warp, warps, slot, lane), x, p.y, p.z, p.w);
    XSTAGE_MARK()
    x += XSTAGE_REDUCES ? 0 : 1;
    ++slot;
  }
  end = sm_clock();
}
#else
static __device__ __forceinline__ void issue(char *window, u32 groups, u32 first_group, u32 stores, Pattern p, u32 lane, u32 *timeline, u64 &start,
                                             u64 &end) {
  char *const last = window + (u64)groups * GROUP_BYTES + lane * PIECE_BYTES;
  char *const first = window + lane * PIECE_BYTES;
  char *to = first + (u64)(first_group % groups) * GROUP_BYTES;
  const bool active = XSTAGE_ACTIVE_LANES == 32 || lane < XSTAGE_ACTIVE_LANES;
  u32 x = p.x + (XSTAGE_REDUCES ? 0 : first_group * GROUP);
  u32 whole = stores / GROUP, rest = stores % GROUP;
#ifdef XSTAGE_TIMELINE
  u32 at = 0;
#endif
  start = sm_clock();
#pragma unroll 1
  for (; whole; --whole) {
#pragma unroll
    for (u32 i = 0; i < GROUP; ++i) {
      if (active) XSTAGE_FLAVOUR(to + i * WARP_STORE_BYTES, x + (XSTAGE_REDUCES ? 0 : i), p.y, p.z, p.w);
      XSTAGE_MARK()
    }
    x += XSTAGE_REDUCES ? 0 : GROUP;
    to += GROUP_BYTES;
    if (to == last) to = first;
  }
#pragma unroll 1
  for (; rest; --rest) {
    if (active) XSTAGE_FLAVOUR(to, x, p.y, p.z, p.w);
    XSTAGE_MARK()
    x += XSTAGE_REDUCES ? 0 : 1;
    to += WARP_STORE_BYTES;
  }
  end = sm_clock();
}
#endif
