// Sums before sending: of a token's results of several local experts only the weighted sum goes to the owner, as one row.
//
// Rows of such a token are added up in float32 in this GPU's memory; who adds the last one of a tile's 128 columns reads the sum and sends
// it. Nobody waits. A release pays for all that the SM has under way to other GPUs (docs/fences.md), so a warp adds all rows that it has in
// a tile, counts them in one release, and stores to other GPUs only then.
#pragma once

#include "moe_epilogue.cuh"

// Predicated, since a branch for each addition would cost more than it.
static __device__ __forceinline__ void add_16_if(bool there, float *to, float4 v) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; @p red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4}; }" ::"l"(to), "f"(v.x), "f"(v.y),
               "f"(v.z), "f"(v.w), "r"((u32)there)
               : "memory");
}
static __device__ __forceinline__ float4 load_sum(const float *from) {
  float4 v;  // from the second level cache, where the additions were made
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from) : "memory");
  return v;
}
static __device__ __forceinline__ u32 count_added(u32 *count) {
  u32 before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(count) : "memory");
  return before;
}
static __device__ __forceinline__ float *sum_of(const MoePlan &plan, u32 word, u32 column) {
  return (float *)plan.sums + (u64)(word >> SUM_ROWS_BITS) * plan.hidden + column * TILE;
}

// Adds the warp's rows that are part of a sum, both halves of the tile; afterwards facts.complete has the rows whose sums this completed.
static __device__ __forceinline__ void add_sums(const MoePlan &plan, Facts &facts, const Scales &scales, const float (&upper)[HALF], const float (&lower)[HALF], const Task &task,
                                                u32 lane) {
  if (!__any_sync(0xffffffffu, facts.sum != NO_ROW)) return;
  float2 scale[2];
  float *to[4];  // four columns of each of the thread's rows: an even thread's from group j of eight, an odd thread's from the next one
#pragma unroll
  for (u32 half = 0; half < 2; ++half) {
    scale[half] = result_scales(plan, facts, half, lane);
#pragma unroll
    for (u32 i = 0; i < 2; ++i) {
      const u32 word = __shfl_sync(0xffffffffu, facts.sum, 16 * half + lane / 4 + 8 * i);
      to[2 * half + i] = word == NO_ROW ? nullptr : sum_of(plan, word, task.column) + 8 * (lane & 1) + 2 * (lane & 2);
    }
  }
#pragma unroll
  for (u32 j = 0; j < 16; j += 2) {
    const float2 s = scales[j], t = scales[j + 1];
#pragma unroll
    for (u32 r = 0; r < 4; ++r) {
      const float *const e = &(r / 2 ? lower : upper)[4 * j + 2 * (r & 1)];
      const float by = r & 1 ? scale[r / 2].y : scale[r / 2].x;
      const float2 a = make_float2(e[0] * by * s.x, e[1] * by * s.y), b = make_float2(e[4] * by * t.x, e[5] * by * t.y);
      const float2 theirs = lane & 1 ? a : b;
      const float2 got = make_float2(__shfl_xor_sync(0xffffffffu, theirs.x, 1), __shfl_xor_sync(0xffffffffu, theirs.y, 1));
      add_16_if(to[r] != nullptr, to[r] + 8 * j, lane & 1 ? make_float4(got.x, got.y, b.x, b.y) : make_float4(a.x, a.y, got.x, got.y));
    }
  }
  __syncwarp();  // the warp's additions come before each lane's release
  bool last = false;
  if (facts.sum != NO_ROW) {
    u32 *const count = (u32 *)plan.sum_counts + (u64)(facts.sum >> SUM_ROWS_BITS) * (plan.hidden / TILE) + task.column;
    last = count_added(count) + 1 == (facts.sum & ((1u << SUM_ROWS_BITS) - 1));
  }
  facts.complete = __ballot_sync(0xffffffffu, last);
  __syncwarp();  // and each lane's acquire before what the others read
}

// Sends the complete sums, two rows at a time by half a warp each, eight rows' reads under way at once.
static __device__ __forceinline__ void send_sums(const MoePlan &plan, const Facts &facts, const Task &task, u32 lane) {
  constexpr bool wide = XSTAGE_COMBINE == XSTAGE_COMBINE_F32;
  const u32 chunk = lane & 15, row_bytes = (wide ? 4 : 2) * plan.hidden, segment = (wide ? 4 : 2) * task.column * TILE;
  u32 left = facts.complete;
  while (left) {
    float4 a[4], b[4];
    u32 slot[4];
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      const u32 one = __ffs(left) - 1;
      left &= left - 1;
      const u32 other = __ffs(left) - 1;
      left &= left - 1;
      const u32 row = lane < 16 ? one : other;  // 0xffffffff: none is left
      const u32 word = __shfl_sync(0xffffffffu, facts.sum, row & 31), to = __shfl_sync(0xffffffffu, facts.slot, row & 31);
      slot[i] = row < 32 ? to : NO_ROW;
      if (slot[i] == NO_ROW) continue;
      const float *const from = sum_of(plan, word, task.column) + (wide ? 4 : 8) * chunk;
      a[i] = load_sum(from), b[i] = load_sum(from + (wide ? TILE / 2 : 4));
    }
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      if (slot[i] == NO_ROW) continue;
      char *const to = (char *)plan.slots[slot[i] >> 28] + (u64)(slot[i] & 0xfffffff) * row_bytes + segment + 16 * chunk;
      if (wide) {
        store_16(to, make_uint4(__float_as_uint(a[i].x), __float_as_uint(a[i].y), __float_as_uint(a[i].z), __float_as_uint(a[i].w)));
        store_16(to + SEGMENT_BYTES, make_uint4(__float_as_uint(b[i].x), __float_as_uint(b[i].y), __float_as_uint(b[i].z), __float_as_uint(b[i].w)));
      } else {
        store_16(to, make_uint4(pack_bf16(a[i].x, a[i].y), pack_bf16(a[i].z, a[i].w), pack_bf16(b[i].x, b[i].y), pack_bf16(b[i].z, b[i].w)));
      }
    }
  }
}
