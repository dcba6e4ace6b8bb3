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
  named_sync(barrier, threads);
  if (threadIdx.x == WARPGROUP) {
    tell_ranks(plan.finished, plan.ranks);
    await_ranks(plan.own_finished, plan.epoch * plan.ranks * gridDim.x, plan.timeout_ns);
  }
  named_sync(barrier, threads);
}

// Four e4m3 codes, lowest byte first.
static __device__ __forceinline__ float4 unpack_fp8(u32 codes) {
  float4 v;
  asm("{ .reg .b16 l, h, a, b, c, d; .reg .b32 x, y; mov.b32 {l, h}, %4; cvt.rn.f16x2.e4m3x2 x, l; cvt.rn.f16x2.e4m3x2 y, h; mov.b32 {a, b}, x; "
      "mov.b32 {c, d}, y; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; cvt.f32.f16 %2, c; cvt.f32.f16 %3, d; }"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(codes));
  return v;
}

// REDUCED columns of a result row, in order.
static constexpr u32 REDUCED = XSTAGE_COMBINE == XSTAGE_COMBINE_FP8 ? 16 : 8;
static __device__ __forceinline__ void load_results(float (&v)[REDUCED], const char *slots, u64 at) {
#if XSTAGE_COMBINE == XSTAGE_COMBINE_F32
  const float4 a = *(const float4 *)(slots + 4 * at), b = *(const float4 *)(slots + 4 * at + 16);
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w, v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
#else
  const uint4 raw = *(const uint4 *)(slots + (XSTAGE_COMBINE == XSTAGE_COMBINE_FP8 ? 1 : 2) * at);
  const u32 words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
  for (u32 i = 0; i < 4; ++i) {
#if XSTAGE_COMBINE == XSTAGE_COMBINE_FP8
    const float4 four = unpack_fp8(words[i]);  // of the thread that had columns 2 i, 2 i + 1, 8 + 2 i, 8 + 2 i + 1
    v[2 * i] = four.x, v[2 * i + 1] = four.y, v[8 + 2 * i] = four.z, v[8 + 2 * i + 1] = four.w;
#else
    v[2 * i] = __uint_as_float(words[i] << 16), v[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);  // a BF16 is the upper half of a float32
#endif
  }
#endif
}

// out[t] = sum over k of weight[t, k] * slot[slot_of[t, k]]; a weight of zero is a masked slot, which nobody has written.
static __device__ void reduce_tokens(const MoePlan &plan, u32 thread, u32 threads) {
  const char *const slots = (const char *)plan.own_slots;
  const u32 chunks = plan.hidden / REDUCED;
  const float *const weights = (const float *)plan.weights;
  const u32 *const slot_of = (const u32 *)plan.slot_of;
  const float scale = XSTAGE_COMBINE == XSTAGE_COMBINE_FP8 ? plan.result_scale : 1.0f;
  for (u32 token = blockIdx.x; token < plan.tokens; token += gridDim.x)
    for (u32 c = thread; c < chunks; c += threads) {
      float sum[REDUCED] = {};
      for (u32 k = 0; k < plan.top_k; ++k) {
        const float w = weights[token * plan.top_k + k] * scale;
        if (w == 0.0f) continue;
        float v[REDUCED];
        load_results(v, slots, (u64)slot_of[token * plan.top_k + k] * plan.hidden + REDUCED * c);
#pragma unroll
        for (u32 i = 0; i < REDUCED; ++i) sum[i] += w * v[i];
      }
#pragma unroll
      for (u32 i = 0; i < REDUCED; i += 8)
        store_16((char *)plan.out + 2 * ((u64)token * plan.hidden + REDUCED * c + i),
                 make_uint4(pack_bf16(sum[i], sum[i + 1]), pack_bf16(sum[i + 2], sum[i + 3]), pack_bf16(sum[i + 4], sum[i + 5]),
                            pack_bf16(sum[i + 6], sum[i + 7])));
    }
}
