// The measured loops. Their unrolling is part of the instrument (docs/method.md): groups of four warp-stores, the last one may be
// partly empty. A layout of segments computes each address, which costs a few instructions more; bulk copies are started one by one by lane 0.
//
// A warp goes on while its last stores still wait for the SM with their data in registers, and the next instruction that overwrites such a
// register waits with them. So nothing is overwritten between the last store and the clock read that says "issued": what a store needs is
// computed before it, and the registers it was made of are returned, to be used once more after the clock reads (`still_there`).
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
static constexpr u32 ADDRESSES = XSTAGE_SEGMENTS && !XSTAGE_IS_BULK ? GROUP : 1;

struct Issue {
  u64 start, issued;  // before the first store, and when the last one has left the warp
  u32 word;           // what the last stores were made of
  u64 address[ADDRESSES];
};

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
static __device__ __forceinline__ Issue issue(u64 map, u32 row, u32 window_bytes, u32 warp, u32 warps, u32 first, u32 stores, u32 source, u32 lane,
                                              u32 *timeline) {
  const u32 turn = groups_per_warp(window_bytes, warps), before = warp * turn;
  u32 slot = first % turn;
  u32 from = source + first % BULK_SOURCES * STEP_BYTES;
  const u32 last = source + BULK_SOURCES * STEP_BYTES;
#ifdef XSTAGE_TIMELINE
  u32 at = 0;
#endif
  const u64 start = sm_clock();
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
  return {start, sm_clock(), slot, {from}};
}
#else
static __device__ __forceinline__ Issue issue(char *window, u32 window_bytes, u32 warp, u32 warps, u32 first, u32 stores, u32 source, u32 lane,
                                              u32 *timeline) {
  const u32 turn = groups_per_warp(window_bytes, warps);
  u32 slot = first % turn;
  u32 from = source + first % BULK_SOURCES * STEP_BYTES;
  const u32 last = source + BULK_SOURCES * STEP_BYTES;
  char *to = window + (XSTAGE_SEGMENTS ? 0 : place(window_bytes, warp, warps, slot, 0));
#ifdef XSTAGE_TIMELINE
  u32 at = 0;
#endif
  const u64 start = sm_clock();
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
  return {start, sm_clock(), slot ^ from, {(u64)to}};
}
#endif
#elif XSTAGE_SEGMENTS
static __device__ __forceinline__ Issue issue(char *window, u32 window_bytes, u32 warp, u32 warps, u32 first_group, u32 stores, Pattern p, u32 lane,
                                              u32 *timeline) {
  u32 slot = first_group * GROUP - GROUP;
  u32 x = p.x + (XSTAGE_REDUCES ? 0 : first_group - 1);
  char *to[GROUP] = {};
#ifdef XSTAGE_TIMELINE
  u32 at = 0;
#endif
  const u64 start = sm_clock();
#pragma unroll 1
  for (int left = stores; left > 0; left -= GROUP) {
    slot += GROUP;
    if (!XSTAGE_REDUCES) count_up(x);
#pragma unroll
    for (u32 i = 0; i < GROUP; ++i) to[i] = window + place(window_bytes, warp, warps, slot + i, lane);
#pragma unroll
    for (int i = 0; i < GROUP; ++i)
      if (i == 0 || i < left) {
        XSTAGE_FLAVOUR(to[i], x, p.y, p.z, p.w);
        XSTAGE_MARK()
      }
  }
  Issue done = {start, sm_clock(), x};
#pragma unroll
  for (u32 i = 0; i < GROUP; ++i) done.address[i] = (u64)to[i];
  return done;
}
#else
static __device__ __forceinline__ Issue issue(char *window, u32 groups, u32 first_group, u32 stores, Pattern p, u32 lane, u32 *timeline) {
  char *const last = window + (u64)groups * GROUP_BYTES + lane * PIECE_BYTES;
  char *const first = window + lane * PIECE_BYTES;
  char *to = first + (u64)(first_group % groups) * GROUP_BYTES - GROUP_BYTES;
  u32 x = p.x + (XSTAGE_REDUCES ? 0 : first_group - 1);
  const u32 own = XSTAGE_ACTIVE_LANES == 32 || lane < XSTAGE_ACTIVE_LANES ? stores : 0;  // an inactive lane waits behind the loop
#ifdef XSTAGE_TIMELINE
  u32 at = 0;
#endif
  const u64 start = sm_clock();
#pragma unroll 1
  for (int left = own; left > 0; left -= GROUP) {
    to += GROUP_BYTES;
    if (to == last) to = first;
    if (!XSTAGE_REDUCES) count_up(x);
#pragma unroll
    for (int i = 0; i < GROUP; ++i)
      if (i == 0 || i < left) {
        XSTAGE_FLAVOUR(to + i * WARP_STORE_BYTES, x, p.y, p.z, p.w);
        XSTAGE_MARK()
      }
  }
  return {start, sm_clock(), x, {(u64)to}};
}
#endif
