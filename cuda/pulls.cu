// Loads from another memory in bursts: each warp keeps `depth` loads in flight, waits for all of them, and goes on; before that it may store.
//
// What a warp loads next depends on what it has loaded, times zero, so a round begins when the one before it has arrived. The loads leave
// nothing in the first level cache. Every loaded word enters a sum that the CPU knows, so a load that was lost or went elsewhere is seen.
#include "flavours.cuh"
#include "rendezvous.cuh"

struct Pull {  // mirrored by PULL in xstage_bench/device/cuda/pulls.py
  u32 producers, warps, depth, loads, stores, tag;
};
struct Result {  // mirrored by RESULT; SM clock after the CTA's epoch, %globaltimer after the deadline
  u32 start, end, start_ns, end_ns, sum, state;
};

static constexpr u32 DONE = 1, TIMED_OUT = 2, LOAD_BYTES = 512, WINDOW_BYTES = 256 * 1024;
static constexpr u32 WINDOW_LOADS = WINDOW_BYTES / LOAD_BYTES;

static __device__ __forceinline__ uint4 load(const char *at) {
  uint4 v;
  asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at) : "memory");
  return v;
}

static __device__ __forceinline__ u32 mixed(uint4 v) { return v.x + 3 * v.y + 5 * v.z + 7 * v.w; }

// The clock when everything in `sum` has arrived: the warp meets under a mask that needs it. `nothing` is zero, which no compiler knows.
static __device__ __forceinline__ u64 clock_when_arrived(u32 sum, u32 nothing) {
  u64 t;
  asm volatile("{\n\tbar.warp.sync %1;\n\tmov.u64 %0, %%clock64;\n\t}" : "=l"(t) : "r"(~(sum & nothing)) : "memory");
  return t;
}

// `own`: loads of the warp's part of the window, a power of two. `loads` is a multiple of DEPTH.
template <u32 DEPTH>
static __device__ __forceinline__ u32 pulled(const char *window, u32 own, u32 loads, u32 nothing, u64 &start) {
  u32 sum = 0, at = 0;
  start = sm_clock();  // here, so that the choice of DEPTH is not timed
#pragma unroll 1
  for (u32 left = loads; left; left -= DEPTH) {
    uint4 held[DEPTH];
#pragma unroll
    for (u32 i = 0; i < DEPTH; ++i) held[i] = load(window + (u64)((at + i) & (own - 1)) * LOAD_BYTES);
#pragma unroll
    for (u32 i = 0; i < DEPTH; ++i) sum += mixed(held[i]);
    at += DEPTH + (sum & nothing);
  }
  return sum;
}

extern "C" __global__ void __launch_bounds__(512, 1)
xstage_pull(const char *from, char *to, Pull p, const short *producer_of, Result *results, Control *control, u64 lead_ns, u64 timeout_ns) {
  __shared__ u64 start_ns, epoch;
  __shared__ u32 state, zero_word;
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int producer = producer_of[sm_id()];
  if (threadIdx.x == 0) {
    u64 letters = 0, named = 0;
    state = gather(control, nullptr, 0, 1, 0, letters, lead_ns, timeout_ns, nullptr, named) ? DONE : TIMED_OUT;
    start_ns = named;
    epoch = sm_clock();
    *(volatile u32 *)&zero_word = 0;
  }
  __syncthreads();
  if (producer < 0 || warp >= p.warps) return;
  Result *const out = results + producer * p.warps + warp;
  if (state != DONE) {
    if (lane == 0) out->state = TIMED_OUT;
    return;
  }
  const u32 own = WINDOW_LOADS / p.warps, nothing = *(volatile u32 *)&zero_word;
  const u64 offset = (u64)producer * WINDOW_BYTES + (u64)warp * own * LOAD_BYTES + lane * 16, zero = start_ns, origin = epoch;
  const char *const window = from + offset;
  char *const pushed = to + offset;
  while (global_timer_ns() < zero) {
  }
#pragma unroll 1
  for (u32 i = 0; i < p.stores; ++i) st_v4(pushed + (u64)(i & (own - 1)) * LOAD_BYTES, p.tag, i, warp, lane);
  const u64 begin_ns = global_timer_ns();
  u32 sum = 0;
  u64 start = 0;
  switch (p.depth) {
    case 1: sum = pulled<1>(window, own, p.loads, nothing, start); break;
    case 2: sum = pulled<2>(window, own, p.loads, nothing, start); break;
    case 4: sum = pulled<4>(window, own, p.loads, nothing, start); break;
    case 8: sum = pulled<8>(window, own, p.loads, nothing, start); break;
    default: sum = pulled<16>(window, own, p.loads, nothing, start); break;
  }
  const u64 end = clock_when_arrived(sum, nothing);
  const u64 end_ns = global_timer_ns();
  const u32 total = __reduce_add_sync(0xffffffffu, sum);
  if (lane == 0) *out = {(u32)(start - origin), (u32)(end - origin), (u32)(begin_ns - zero), (u32)(end_ns - zero), total, DONE};
}

// On the owner, over its own memory; `count` of 16 bytes.
extern "C" __global__ void xstage_pull_fill(uint4 *memory, u64 count, u32 salt) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
    const u32 x = (u32)i * 0x9E3779B1u ^ salt;
    memory[i] = make_uint4(x, x ^ (x >> 7), ~x, x + salt);
  }
}
