// The end of the layer: every rank has stored all its rows, then each token's rows are weighted and summed where they are owned.
#pragma once

#include "moe_epilogue.cuh"

static __device__ __forceinline__ void tell_ranks(const u64 *counts, u32 ranks) {
  asm volatile("fence.acq_rel.sys;" ::: "memory");
  for (u32 r = 0; r < ranks; ++r) asm volatile("red.relaxed.sys.global.add.u32 [%0], 1;" ::"l"((u32 *)counts[r]) : "memory");
}
static __device__ __forceinline__ void await_ranks(u64 count, u32 at_least, u64 timeout_ns) {
  const u64 give_up = global_timer_ns() + timeout_ns;
  u32 seen;
  do {
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(seen) : "l"((const u32 *)count) : "memory");
    if (global_timer_ns() > give_up) fault();
  } while ((int)(seen - at_least) < 0);
}

// One thread of each CTA: no rank begins before all are there, so that what is timed is the layer and not the host's launches.
static __device__ __forceinline__ void begin_together(const MoePlan &plan) {
  if (blockIdx.x == 0) tell_ranks(plan.started, plan.ranks);
  await_ranks(plan.own_started, plan.epoch * plan.ranks, plan.timeout_ns);
}

// By all consumer threads of the CTA. The release waits until what this SM has stored is visible at the owners.
static __device__ __forceinline__ void meet_ranks(const MoePlan &plan, u32 barrier, u32 threads) {
#if XSTAGE_ROW_STORE == XSTAGE_ROW_STORE_BULK
  bulk_wait();  // each thread's own bulk stores are performed; then a release publishes them
#endif
  named_sync(barrier, threads);
  if (threadIdx.x == WARPGROUP) {
    tell_ranks(plan.finished, plan.ranks);
    await_ranks(plan.own_finished, plan.epoch * plan.ranks * gridDim.x, plan.timeout_ns);
  }
  named_sync(barrier, threads);
}

// out[t] = sum over k of weight[t, k] * slot[t * top_k + k]; a weight of zero is a masked slot, which nobody has written.
static __device__ void reduce_tokens(const MoePlan &plan, u32 thread, u32 threads) {
  const char *const slots = (const char *)plan.own_slots;
  const u32 chunks = plan.hidden / 8;
  const float *const weights = (const float *)plan.weights;
  for (u32 token = blockIdx.x; token < plan.tokens; token += gridDim.x)
    for (u32 c = thread; c < chunks; c += threads) {
      float sum[8] = {};
      for (u32 k = 0; k < plan.top_k; ++k) {
        const float w = weights[token * plan.top_k + k];
        if (w == 0.0f) continue;
        const u64 at = ((u64)token * plan.top_k + k) * plan.hidden + 8 * c;
#if XSTAGE_COMBINE == XSTAGE_COMBINE_F32
        const float4 a = *(const float4 *)(slots + 4 * at), b = *(const float4 *)(slots + 4 * at + 16);
        const float v[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#else
        const uint4 raw = *(const uint4 *)(slots + 2 * at);
        const u32 pairs[4] = {raw.x, raw.y, raw.z, raw.w};  // a BF16 is the upper half of a float32
        float v[8];
#pragma unroll
        for (u32 i = 0; i < 4; ++i) v[2 * i] = __uint_as_float(pairs[i] << 16), v[2 * i + 1] = __uint_as_float(pairs[i] & 0xffff0000u);
#endif
#pragma unroll
        for (u32 i = 0; i < 8; ++i) sum[i] += w * v[i];
      }
      store_16((char *)plan.out + 2 * ((u64)token * plan.hidden + 8 * c),
               make_uint4(pack_bf16(sum[0], sum[1]), pack_bf16(sum[2], sum[3]), pack_bf16(sum[4], sum[5]), pack_bf16(sum[6], sum[7])));
    }
}
