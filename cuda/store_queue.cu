// Where a stall shows, and what else has to wait: the clock of a storing warp right after its last store, after one more instruction, after a
// fence of the CTA; and what a warp of the same SM that stores nothing meets at the same time (docs/own-kernel.md).
//
// Constant registers at immediate offsets, as a compiler unrolls an epilogue: no store waits for the one before.
#include "stamps.cuh"

#ifndef XSTAGE_STORES
#define XSTAGE_STORES 16  // of each warp
#endif
#ifndef XSTAGE_AFTER
#define XSTAGE_AFTER 1
#endif
#define XSTAGE_AFTER_NONE 0
#define XSTAGE_AFTER_SHUFFLE 1
#define XSTAGE_AFTER_SHARED_LOAD 2
#define XSTAGE_AFTER_GLOBAL_LOAD 3  // of this GPU's memory, from L2
#define XSTAGE_AFTER_OVERWRITE 4    // of a register that the last store reads
#define XSTAGE_AFTER_BULK_LOAD 5    // of 512 bytes of this GPU's memory, by the copy engine (sm_90)
#ifndef XSTAGE_BULK
#define XSTAGE_BULK 0  // 1: the same bytes by bulk stores of 2 KiB from shared memory, by one thread of each warp (sm_90)
#endif

static constexpr bool BYSTANDER = XSTAGE_AFTER != XSTAGE_AFTER_NONE && XSTAGE_AFTER != XSTAGE_AFTER_OVERWRITE;
static constexpr u32 WARPS = 4, ROUNDS = 10, STORE_BYTES = 512, BULK_BYTES = 2048;

struct QueuePlan {  // mirrored by PLAN in results/h200-x2/store-queue/page.py
  u64 destination, begin_ns, period_ns, here, report;
  u32 active, regions, salt, bystander_cycles;
  u32 watch, pad;  // 1: on SMs that store nothing the warp beside reads all the same
};
struct Round {  // mirrored by ROUND: low words of the SM's clock
  u32 first[WARPS], stored[WARPS], then[WARPS], fenced[WARPS];
  u32 bystander_first, bystander_longest, bystander_last_slow;  // cycles of one instruction; when the last slow one ended
  u32 smid;
};

static __device__ __forceinline__ u32 now() {
  u32 t;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(t)::"memory");
  return t;
}
// The clock is read after this only when the value is there: a predicated store waits for what it tests.
static __device__ __forceinline__ void needed(u32 value, u64 here) {
  asm volatile("{ .reg .pred p; setp.eq.u32 p, %0, 0x9ABCDEF1; @p st.global.u32 [%1], %0; }" ::"r"(value), "l"(here) : "memory");
}
#if XSTAGE_BULK || XSTAGE_AFTER == XSTAGE_AFTER_BULK_LOAD
// Until the copy engine has brought 512 bytes; `phase` counts the calls of this warp. Ends by itself.
static __device__ __forceinline__ void bulk_load(u32 to, u64 from, u32 bar, u32 phase, u32 lane) {
  if (lane == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "n"(STORE_BYTES) : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "n"(STORE_BYTES), "r"(bar) : "memory");
    for (u32 left = 1000000, done = 0; !done && left; --left)
      asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(bar), "r"(phase & 1) : "memory");
  }
  __syncwarp();
}
// The same bytes as the other warps' stores, from 2 KiB of shared memory that repeat their pattern.
static __device__ __forceinline__ void bulk_stores(u64 to, u32 from, u32 lane) {
  if (lane == 0)
    for (u32 i = 0; i < XSTAGE_STORES * STORE_BYTES / BULK_BYTES; ++i) {
      asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to + i * BULK_BYTES), "r"(from), "n"(BULK_BYTES) : "memory");
      asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}
#endif
static __device__ __forceinline__ u32 instruction(u32 value, u32 shared, u64 here, u32 lane) {
  u32 v = value;
#if XSTAGE_AFTER == XSTAGE_AFTER_SHUFFLE
  asm volatile("shfl.sync.bfly.b32 %0, %1, 1, 31, 0xffffffff;" : "=r"(v) : "r"(lane) : "memory");
#elif XSTAGE_AFTER == XSTAGE_AFTER_SHARED_LOAD
  asm volatile("ld.volatile.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared + 4 * lane) : "memory");
#elif XSTAGE_AFTER == XSTAGE_AFTER_GLOBAL_LOAD
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(here + 4 * lane) : "memory");
#endif
  return v;
}

extern "C" __global__ void __launch_bounds__(32 * (WARPS + 1), 1) xstage_store_queue(const QueuePlan plan) {
  extern __shared__ u32 memory[];  // large: one CTA on each SM
  __shared__ Round kept[ROUNDS];
  __shared__ u32 words[32];
  __shared__ uint4 values[32 * (WARPS + 1)];
#if XSTAGE_BULK || XSTAGE_AFTER == XSTAGE_AFTER_BULK_LOAD
  __shared__ __align__(128) uint4 source[WARPS][BULK_BYTES / 16];
  __shared__ __align__(128) uint4 brought[WARPS + 1][32];
  __shared__ u64 barriers[WARPS + 1];
  if (threadIdx.x < WARPS + 1)
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"((u32)__cvta_generic_to_shared(barriers + threadIdx.x)) : "memory");
  u32 phase = 0;
#endif
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, sms = gridDim.x, smid = sm_id();
  if (threadIdx.x < 32) words[lane] = lane;
  if (threadIdx.x == 0) memory[0] = 0;
  __syncthreads();
  const bool stores = smid * plan.active % sms < plan.active;  // evenly over the SMs
  if (!stores && !plan.watch) return;
  const u32 shared = (u32)__cvta_generic_to_shared(words);
  for (u32 r = 0; r < ROUNDS; ++r) {
    const u64 deadline = plan.begin_ns + r * plan.period_ns, give_up = global_timer_ns() + 100 * plan.period_ns;
    const u64 to = plan.destination + (((u64)(r % plan.regions) * sms + smid) * WARPS + warp) * XSTAGE_STORES * STORE_BYTES + 16 * lane;
    // Read from shared memory as one, so that all stores read the same four registers; used again below, so that no clock lands in one of them.
    values[threadIdx.x] = make_uint4(plan.salt + r, smid, warp, lane);
    u32 a, b, c, d;
    asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"((u32)__cvta_generic_to_shared(values + threadIdx.x)) : "memory");
#if XSTAGE_BULK
    if (warp < WARPS)
      for (u32 i = 0; i < BULK_BYTES / STORE_BYTES; ++i) source[warp][32 * i + lane] = make_uint4(a, b, c, d);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
#endif
    while (global_timer_ns() < deadline && global_timer_ns() < give_up) {
    }
    if (warp < WARPS && !stores) {
    } else if (warp < WARPS) {
      const u32 first = now();
#if XSTAGE_BULK
      bulk_stores(to - 16 * lane, (u32)__cvta_generic_to_shared(source[warp]), lane);
#else
#pragma unroll
      for (u32 i = 0; i < XSTAGE_STORES; ++i)
        asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to + i * STORE_BYTES), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
#endif
      const u32 stored = now();
#if XSTAGE_AFTER == XSTAGE_AFTER_OVERWRITE
      asm volatile("add.u32 %0, %0, 1;" : "+r"(d)::"memory");
      needed(d, plan.here);
#elif XSTAGE_AFTER == XSTAGE_AFTER_BULK_LOAD
      bulk_load((u32)__cvta_generic_to_shared(brought[warp]), plan.here, (u32)__cvta_generic_to_shared(barriers + warp), phase++, lane);
#elif XSTAGE_AFTER != XSTAGE_AFTER_NONE
      needed(instruction(lane, shared, plan.here, lane), plan.here);
#endif
      const u32 then = now();
#if XSTAGE_BULK
      asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
#else
      asm volatile("fence.acq_rel.cta;" ::: "memory");
#endif
      const u32 fenced = now();
      if (lane == 0) kept[r].first[warp] = first, kept[r].stored[warp] = stored, kept[r].then[warp] = then, kept[r].fenced[warp] = fenced;
    } else {
      const u32 first = now();
      u32 longest = 0, last = first;
      for (u32 at = first; BYSTANDER && at - first < plan.bystander_cycles;) {
#if XSTAGE_AFTER == XSTAGE_AFTER_BULK_LOAD
        bulk_load((u32)__cvta_generic_to_shared(brought[warp]), plan.here, (u32)__cvta_generic_to_shared(barriers + warp), phase++, lane);
#else
        needed(instruction(lane, shared, plan.here, lane), plan.here);
#endif
        const u32 end = now(), took = end - at;
        if (took > longest) longest = took;
        if (took > 400) last = end;
        at = end;
      }
      if (lane == 0) kept[r].bystander_first = first, kept[r].bystander_longest = longest, kept[r].bystander_last_slow = last, kept[r].smid = smid;
    }
    needed(a ^ b ^ c ^ d ^ (u32)to ^ (u32)(to >> 32), plan.here);
    asm volatile("bar.sync 0;" ::: "memory");
  }
  u32 *const out = (u32 *)((Round *)plan.report + (u64)smid * ROUNDS);
  for (u32 i = threadIdx.x; i < sizeof(kept) / 4; i += blockDim.x) out[i] = ((const u32 *)kept)[i];
}

// The deadlines are this GPU's own time, which is not the host's.
extern "C" __global__ void xstage_store_queue_now(u64 *out) { *out = global_timer_ns(); }
