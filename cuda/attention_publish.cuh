// Flags: a warp that computes nothing and stores nothing but flags publishes what the consumer warps have stored. A release waits for
// everything outstanding on its SM, from whichever warp it comes (results/h200-x2/fences); here nobody waits for it. Another one watches what
// the other ranks publish.
#pragma once

#include "attention_plan.cuh"

static __device__ __forceinline__ u32 flag_load(const u32 *p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
static __device__ __forceinline__ void flag_add(u32 *p) { asm volatile("red.relaxed.sys.global.add.u32 [%0], 1;" ::"l"(p) : "memory"); }
static __device__ __forceinline__ void flag_store(u32 *p, u32 v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }
static __device__ __forceinline__ void release_to_all() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// A consumer warp has stored so many of its tiles.
static __device__ __forceinline__ void report_stored(u32 base, u32 warp, u32 lane, u32 tiles) {
  __syncwarp();
  if (lane == 0) asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(base + STORED_AT + 4 * warp), "r"(tiles) : "memory");
}

// Tiles that all consumer warps have stored.
static __device__ __forceinline__ u32 tiles_stored(u32 base, u32 lane) {
  u32 mine = 0xffffffffu;
  if (lane < CONSUMER_WARPS) asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(mine) : "r"(base + STORED_AT + 4 * lane) : "memory");
  const u32 least = __reduce_min_sync(0xffffffffu, mine);
  __syncwarp();  // what each lane has acquired comes before the release of one
  return least;
}

static __device__ __forceinline__ void publish_tile(const AttentionPlan &plan, u32 word) {
  const Tile tile = tile_of(word);
  const u32 row = tile.block * QUERIES, last = min(row + QUERIES, plan.seq) - 1, blocks = (plan.seq + QUERIES - 1) / QUERIES;
  for (u32 owner = row / plan.rows_per_owner; owner <= last / plan.rows_per_owner; ++owner) {
    u32 *words = (u32 *)plan.flags[owner];
    if (XSTAGE_FLAGS == XSTAGE_FLAGS_TILE) flag_store(words + (plan.head_first + tile.head) * blocks + tile.block, plan.epoch);
    else flag_add(words);
  }
}

// Watches from the start, so that in the end only the last flags are still to be seen. The launch ends when this does.
static __device__ void await_flags(const AttentionPlan &plan, u32 lane) {
  const u64 give_up = global_timer_ns() + plan.timeout_ns;
  bool late = false;
  for (u32 w = 0; w < plan.wait_count && !late; ++w) {
    const Wait wait = ((const Wait *)plan.waits)[w];
    for (u32 i = lane; i < wait.count && !late; i += 32)
      while ((int)(flag_load((const u32 *)wait.words + i) - wait.per_launch * plan.epoch) < 0 && !late) {
        late = global_timer_ns() > give_up;
        __nanosleep(500);
      }
    late = __any_sync(0xffffffffu, late);
  }
  asm volatile("fence.acq_rel.sys;" ::: "memory");
  if (lane == 0) *(Report *)plan.report = {global_timer_ns(), (u32)late, 0};
}

// The flag warp of a CTA with `count` tiles, every `stride`-th of the order from `first` on.
static __device__ void publish(const AttentionPlan &plan, u32 base, u32 lane, u32 first, u32 stride) {
  const u32 *order = (const u32 *)plan.order;
  const u32 count = first < plan.tiles ? (plan.tiles - first + stride - 1) / stride : 0;
  const u64 give_up = global_timer_ns() + plan.timeout_ns;
  u32 published = 0;
  bool late = false;
  while (published < count && !late) {
    const u32 stored = XSTAGE_FLAGS == XSTAGE_FLAGS_END ? (tiles_stored(base, lane) == count ? count : published) : tiles_stored(base, lane);
    if (stored == published) {
      late = __any_sync(0xffffffffu, global_timer_ns() > give_up);
      __nanosleep(250);
      continue;
    }
    if (XSTAGE_FLAGS != XSTAGE_FLAGS_END && lane == 0) {
      release_to_all();
      for (u32 t = published; t < stored; ++t) publish_tile(plan, order[first + t * stride]);
    }
    published = stored;
  }
  // A fence and the flag that it is for must be one thread's: what another lane adds behind this one's fence, with whatever barrier of the warp in
  // between, synchronises with nobody. So each lane that has a flag fences; for the warp that is one instruction.
  if (XSTAGE_FLAGS == XSTAGE_FLAGS_END && !late && lane < plan.owners && plan.flags[lane]) {
    release_to_all();
    flag_add((u32 *)plan.flags[lane]);
  }
}
