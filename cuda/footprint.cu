// One burst whose stores are dealt over a power of two of destination bytes, so that only the reach of address translation changes.
//
// The destination is cut into chunks of 2^run_log2 slots of one warp-store. Chunks are dealt to the warps in turn, and an odd multiplier
// scatters them over the destination (a bijection, because their number is a power of two): with runs of one slot hardly two stores in
// a row meet the same page; with runs of 2 MiB each warp streams. The arithmetic is the same for every footprint.
#include "flavours.cuh"
#include "pattern.cuh"

struct Deal {  // mirrored by DEAL in xstage_bench/device/cuda/footprint.py
  u32 chunk_mask, run_log2, multiplier, inverse, producers, warps, stores, tag;
};
struct Result {  // mirrored by RESULT; SM clock after the CTA's epoch, %globaltimer after the deadline
  u32 start, end, drained, start_ns, end_ns, state;
};
struct Meeting {  // mirrored by MEETING; zeroed before each launch
  u64 start_ns;
  u32 arrived, released, abort, pad;
};
struct Wrong {  // mirrored by WRONG
  u64 mismatches, offset;
  u32 expected, found;
};

static constexpr u32 DONE = 1, TIMED_OUT = 2;

extern "C" __global__ void __launch_bounds__(512, 1)
xstage_footprint(char *destination, Deal d, const short *producer_of, Result *results, Meeting *meeting, u32 lead_ns, u64 timeout_ns) {
  __shared__ u64 start_ns, epoch;
  __shared__ u32 state, whole;  // whole: of taken_mask
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Plus zero, which no compiler knows: of a constant address even the shuffle is folded, and the read moved before the stores.
  const u32 whole_warp = taken_mask(whole) + ~*(volatile u32 *)&whole;
  const int producer = producer_of[sm_id()];
  if (threadIdx.x == 0) {
    volatile Meeting *m = meeting;
    state = DONE;
    if (atomicAdd(&meeting->arrived, 1u) == gridDim.x - 1) {
      m->start_ns = global_timer_ns() + lead_ns;
      __threadfence();
      m->released = 1;
    }
    const u64 give_up = global_timer_ns() + timeout_ns;
    while (!m->released) {
      if (m->abort || global_timer_ns() > give_up) {
        m->abort = 1;
        state = TIMED_OUT;
        break;
      }
      __nanosleep(64);
    }
    __threadfence();
    start_ns = m->start_ns;
    epoch = sm_clock();
  }
  __syncthreads();
  if (producer < 0 || warp >= d.warps) return;
  Result *const out = results + producer * d.warps + warp;
  if (state != DONE) {
    if (lane == 0) out->state = TIMED_OUT;
    return;
  }
  const u64 zero = start_ns, origin_clock = epoch;
  const Pattern p = pattern_of(d.tag, producer, warp, lane);
  const u32 all = d.producers * d.warps, g = producer * d.warps + warp;
  const u32 step = all * d.multiplier, origin = g * d.multiplier, low = (1u << d.run_log2) - 1;
  char *const base = destination + lane * 16;
  while (global_timer_ns() < zero) {
  }
  const u64 begin_ns = global_timer_ns();
  u32 groups = d.stores / GROUP, j = 0;
  const u64 start = sm_clock();
#pragma unroll 1
  for (; groups; --groups) {
#pragma unroll
    for (u32 i = 0; i < GROUP; ++i, ++j) {
      const u64 slot = (u64)(((j >> d.run_log2) * step + origin) & d.chunk_mask) << d.run_log2 | (j & low);
      XSTAGE_FLAVOUR(base + slot * WARP_STORE_BYTES, p.x + j, p.y, p.z, p.w);
    }
  }
  const u64 end = clock_when_taken(whole_warp);
  const u64 end_ns = global_timer_ns();
  __threadfence_system();
  const u64 drained = sm_clock();
  if (lane == 0) {
    out->start = (u32)(start - origin_clock);
    out->end = (u32)(end - origin_clock);
    out->drained = (u32)(drained - origin_clock);
    out->start_ns = (u32)(begin_ns - zero);
    out->end_ns = (u32)(end_ns - zero);
    out->state = DONE;
  }
}

extern "C" __global__ void xstage_footprint_poison(uint4 *memory, u64 count, u32 word) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) memory[i] = make_uint4(word, word, word, word);
}

// On the destination GPU, over its own memory, after one burst into poison: each 16 bytes hold what one of the warp-stores dealt to this slot
// wrote (several when the burst is larger than the footprint; their order is free), or poison where none was.
extern "C" __global__ void xstage_footprint_check(const uint4 *memory, u64 count, Deal d, u32 word, Wrong *wrong) {
  const u32 all = d.producers * d.warps, low = (1u << d.run_log2) - 1;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
    const u64 slot = i / 32;
    const u32 lane = (u32)(i % 32);
    const uint4 have = memory[i];
    const u64 dealt = ((u32)(slot >> d.run_log2) * d.inverse) & d.chunk_mask;
    bool written = false, right = false;
    u32 expected = word;
    for (u64 chunk = dealt;; chunk += (u64)d.chunk_mask + 1) {
      const u64 j = (chunk / all) << d.run_log2 | (slot & low);
      if (j >= d.stores) break;
      const u32 g = (u32)(chunk % all);
      const Pattern p = pattern_of(d.tag, g / d.warps, g % d.warps, lane);
      expected = p.x + (u32)j;
      written = true;
      right = have.x == expected && have.y == p.y && have.z == p.z && have.w == p.w;
      if (right) break;
    }
    if (!written) right = have.x == word && have.y == word && have.z == word && have.w == word;
    if (!right && atomicAdd(&wrong->mismatches, 1ull) == 0) {
      wrong->offset = i * 16;
      wrong->expected = expected;
      wrong->found = have.x;
    }
  }
}
