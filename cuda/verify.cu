// Runs on the destination GPU, over its own memory: read-back over the link (burst.cu) would not see stores that the same wrong
// mapping takes elsewhere and back.
#include "readback.cuh"

extern "C" __global__ void xstage_poison(uint4 *memory, u64 count, u32 word) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) memory[i] = make_uint4(word, word, word, word);
}

// After xstage_consume of the burst's variant has given every word that it found `word` back: nothing else may have been touched.
extern "C" __global__ void xstage_untouched(const uint4 *memory, u64 count, u32 word, Finding *finding) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
    const uint4 have = memory[i];
    if (have.x != word || have.y != word || have.z != word || have.w != word) {
      if (atomicAdd(&finding->mismatches, 1ull) == 0) {
        finding->offset = i * 16;
        finding->expected = word;
        finding->found = have.x != word ? have.x : have.y != word ? have.y : have.z != word ? have.z : have.w;
      }
    }
  }
}

// Plain stores only, in one pass. After one isolated burst of `stores` warp-stores per warp by `producers` x `warps`: every byte of the buffer is either the pattern or still poison.
extern "C" __global__ void xstage_check(const uint4 *memory, u64 count, u32 window_bytes, u32 producers, u32 warps, u32 stores, u32 tag, u32 word,
                                        Finding *finding) {
  const u32 groups = groups_per_warp(window_bytes, warps);
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
    const u64 offset = i * 16;
    const u32 producer = (u32)(offset / window_bytes), inside = (u32)(offset % window_bytes);
    const u32 warp = inside / (groups * GROUP_BYTES), store = inside % (groups * GROUP_BYTES) / WARP_STORE_BYTES, lane = inside % WARP_STORE_BYTES / 16;
    uint4 want = make_uint4(word, word, word, word);
    if (producer < producers && warp < warps && store < stores) {
      const Pattern p = pattern_of(tag, producer, warp, lane);
      want = make_uint4(p.x + store / GROUP, p.y, p.z, p.w);
    }
    const uint4 have = memory[i];
    if (have.x != want.x || have.y != want.y || have.z != want.z || have.w != want.w) {
      if (atomicAdd(&finding->mismatches, 1ull) == 0) {
        finding->offset = offset;
        finding->expected = want.x;
        finding->found = have.x;
      }
    }
  }
}

// Distinct successive values of %globaltimer: the host takes the greatest common divisor of their differences as the tick.
extern "C" __global__ void xstage_timer_tick(u64 *values, u32 count, u32 max_tries) {
  u64 last = global_timer_ns();
  for (u32 i = 0; i < count; ++i) {
    u64 now = last;
    for (u32 tries = 0; now == last && tries < max_tries; ++tries) now = global_timer_ns();  // a timer that stands still must not hang us
    values[i] = last = now;
  }
}

// Which SM each CTA of a one-CTA-per-SM launch runs on, so that the host knows the smids and can prove that they are distinct.
extern "C" __global__ void xstage_census(u32 *smids) {
  if (threadIdx.x == 0) smids[blockIdx.x] = sm_id();
}
