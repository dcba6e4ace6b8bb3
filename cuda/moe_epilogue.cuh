// What follows a tile's products. Linear-1: SwiGLU, the activations stay here. Linear-2: each row goes to the rank that owns its token.
//
// A warp's 16 rows pass through its own part of shared memory, so that a row leaves as one segment of 256 bytes by half a warp (FP8
// rows: 128 bytes by a quarter); no warp waits for another one.
#pragma once

#include "moe_plan.cuh"

static __device__ __forceinline__ u32 pack_bf16(float low, float high) {
  u32 v;
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(v) : "f"(low), "f"(high));
  return v;
}
static __device__ __forceinline__ u32 pack_fp8(float a, float b, float c, float d) {
  u32 v;
  asm("{ .reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; mov.b32 %0, {l, h}; }"
      : "=r"(v)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return v;
}
// x / (1 + exp(-x)), by the two approximations of the special unit and nothing for huge arguments: their reciprocal is zero, as it should be.
static __device__ __forceinline__ float silu(float x) {
  float e, r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(-1.44269504f * x));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(1.0f + e));
  return x * r;
}

// Where 16 bytes of a row lie: rows of 128 bytes in the copy engine's swizzle, a second block of them for the second 128 bytes.
static __device__ __forceinline__ u32 staged(u32 base, u32 row, u32 chunk) {
  return base + (chunk / 8) * 16 * ROW_BYTES + row * ROW_BYTES + (((chunk & 7) ^ (row & 7)) << 4);
}
// The same for activations, 128 bytes of BF16 or 64 of FP8, in the swizzle of their width.
static __device__ __forceinline__ u32 staged_activation(u32 base, u32 row, u32 chunk) {
#if XSTAGE_FP8
  return base + row * 64 + ((chunk ^ (row / 2 & 3)) << 4);
#else
  return staged(base, row, chunk);
#endif
}
static __device__ __forceinline__ void store_16(void *to, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
// Predicated, no branch: a warp's stores then follow one another.
static __device__ __forceinline__ void store_16_if(bool there, u64 to, uint4 v) {
  asm volatile("{ .reg .pred p; setp.ne.b32 p, %5, 0; @p st.global.v4.u32 [%0], {%1, %2, %3, %4}; }" ::"l"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w),
               "r"((u32)there)
               : "memory");
}

// What the epilogue of a tile reads from memory, asked for before its products begin: afterwards each of these reads would be waited for.
// Lane l has row l % 16 of the warp's 16 rows in product l / 16; four columns of the tile's 128.
struct Facts {
  u32 slot;
  float row_scale, inverse;
  float4 columns;
  u32 scales;  // where in shared memory the tile's column scales lie for this thread
};
static __device__ __forceinline__ Facts facts_of(const MoePlan &plan, const Task &task, u32 expert, u32 warp, u32 lane) {
  const u32 row = task.block * TILE + HALF * (lane >> 4) + 16 * warp + (lane & 15);
  Facts facts = {};
  if (task.second) facts.slot = __ldg((const u32 *)plan.row_slot + row);
#if XSTAGE_FP8
  const float *const columns = task.second ? (const float *)plan.w2_scale + (u64)expert * plan.hidden : (const float *)plan.w1_scale + (u64)expert * 2 * plan.inter;
  facts.columns = __ldg((const float4 *)(columns + task.column * TILE) + lane);
  const float act = __ldg((const float *)plan.act_scale + row);
  facts.row_scale = task.second || XSTAGE_DISPATCH ? act : __ldg((const float *)plan.row_scale + row);
  facts.inverse = __fdividef(1.0f, act);
#endif
  return facts;
}

// The columns' scales leave the registers until the tile's epilogue reads them back, those of a thread's own columns.
static __device__ __forceinline__ void keep_columns(const Facts &facts, u32 scales, u32 lane) {
#if XSTAGE_FP8
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(scales + 16 * lane), "f"(facts.columns.x), "f"(facts.columns.y), "f"(facts.columns.z), "f"(facts.columns.w)
               : "memory");
#endif
}

// A scale that dispatch has brought is known only when its block has arrived: after the products.
static __device__ __forceinline__ void late_facts(Facts &facts, const MoePlan &plan, const Task &task, u32 scales, u32 warp, u32 lane) {
#if XSTAGE_FP8
  __syncwarp();
  // A new value to the compiler: it may move the reads to where they are used, but not to before this.
  asm volatile("mov.u32 %0, %1;" : "=r"(facts.scales) : "r"(scales + 8 * (lane & 3)) : "memory");
#endif
#if XSTAGE_FP8 && XSTAGE_DISPATCH
  const u32 row = task.block * TILE + HALF * (lane >> 4) + 16 * warp + (lane & 15);
  if (!task.second) asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(facts.row_scale) : "l"((const float *)plan.row_scale + row) : "memory");
#endif
}

// This thread's rows lane / 4 and lane / 4 + 8 of a product.
static __device__ __forceinline__ float2 of_rows(float each, u32 half, u32 lane) {
#if XSTAGE_FP8
  const u32 from = 16 * half + lane / 4;
  return make_float2(__shfl_sync(0xffffffffu, each, from), __shfl_sync(0xffffffffu, each, from + 8));
#else
  return make_float2(1.0f, 1.0f);
#endif
}

static __device__ __forceinline__ float2 column_scale(const Facts &facts, u32 j) {
#if XSTAGE_FP8
  float2 v;
  asm("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(facts.scales + 32 * j));
  return v;
#else
  return make_float2(1.0f, 1.0f);
#endif
}
// Scales of this thread's two columns in each group of eight, read at once for both halves of the rows: between the stores of results each read would be
// waited for by itself. Float32 rows have no registers left for that.
struct Scales {
#if XSTAGE_COMBINE == XSTAGE_COMBINE_F32
  const Facts &facts;
  __device__ __forceinline__ explicit Scales(const Facts &f) : facts(f) {}
  __device__ __forceinline__ float2 operator[](u32 j) const { return column_scale(facts, j); }
#else
  float2 of[16];
  __device__ __forceinline__ explicit Scales(const Facts &facts) {
#pragma unroll
    for (u32 j = 0; j < 16; ++j) of[j] = column_scale(facts, j);
  }
  __device__ __forceinline__ float2 operator[](u32 j) const { return of[j]; }
#endif
};

// Gate and up of eight columns lie in neighbouring groups, so both are in this thread. FP8 activations keep the order in which
// a thread holds them; the second linear layer's weights are permuted likewise (xstage_bench/kernels/moe/numbers.py).
static __device__ __forceinline__ void swiglu(const MoePlan &plan, u32 staging, const Facts &facts, const Scales &scales, const float (&d)[HALF], const Task &task, u32 half, u32 warp,
                                              u32 lane) {
  const u32 row = (lane & 7) + (lane & 8), first = task.block * TILE + half * HALF + 16 * warp;
  const float2 scale = of_rows(facts.row_scale, half, lane), inverse = of_rows(facts.inverse, half, lane);
  __syncwarp();  // the staged rows may be written again
#pragma unroll
  for (u32 part = 0; part < 8; part += 4) {
    float a[4][4];
#pragma unroll
    for (u32 h = 0; h < 4; ++h) {
      const u32 g = part + h;
      const float2 gate = scales[2 * g], up = scales[2 * g + 1];
#pragma unroll
      for (u32 i = 0; i < 2; ++i) {
        const float s = i ? scale.y : scale.x, u = s * (i ? inverse.y : inverse.x);
        a[h][2 * i] = silu(d[8 * g + 2 * i] * (s * gate.x)) * (d[8 * g + 4 + 2 * i] * (u * up.x));
        a[h][2 * i + 1] = silu(d[8 * g + 2 * i + 1] * (s * gate.y)) * (d[8 * g + 4 + 2 * i + 1] * (u * up.y));
      }
    }
#if XSTAGE_FP8
    store_matrices(staged_activation(staging, row, part / 2 + (lane >> 4)), pack_fp8(a[0][0], a[0][1], a[1][0], a[1][1]),
                   pack_fp8(a[0][2], a[0][3], a[1][2], a[1][3]), pack_fp8(a[2][0], a[2][1], a[3][0], a[3][1]),
                   pack_fp8(a[2][2], a[2][3], a[3][2], a[3][3]));
#else
#pragma unroll
    for (u32 h = 0; h < 4; h += 2)
      store_matrices(staged_activation(staging, row, part + h + (lane >> 4)), pack_bf16(a[h][0], a[h][1]), pack_bf16(a[h][2], a[h][3]),
                     pack_bf16(a[h + 1][0], a[h + 1][1]), pack_bf16(a[h + 1][2], a[h + 1][3]));
#endif
  }
  __syncwarp();
  constexpr u32 CHUNKS = ACT_COLUMNS * ELEMENT / 16, AT_ONCE = 32 / CHUNKS;
  const u32 chunk = lane % CHUNKS;
  char *const to = (char *)plan.activations + (u64)first * plan.inter * ELEMENT + task.column * ACT_COLUMNS * ELEMENT + 16 * chunk;
#pragma unroll
  for (u32 r = lane / CHUNKS; r < 16; r += AT_ONCE) store_16(to + (u64)r * plan.inter * ELEMENT, shared_load(staged_activation(staging, r, chunk)));
}

// Each row's segment goes to its owner; `segment` is where in the row. `slots`: lane `first` + r has row r's.
static __device__ __forceinline__ void store_segments(const MoePlan &plan, u32 staging, u32 slots, u32 first, u32 lane, u32 row_bytes, u32 segment) {
  constexpr u32 CHUNKS = SEGMENT_BYTES / 16, AT_ONCE = 32 / CHUNKS, STORES = 16 / AT_ONCE;
  const u32 chunk = lane % CHUNKS;
  // Read for a missing row too (of rank 7): with a branch here the compiler makes all that follows twice.
  const u64 there = plan.slots[slots >> 28 & MAX_RANKS - 1] + (u64)(slots & 0xfffffff) * row_bytes + segment, mine = slots == NO_ROW ? 0 : there;
  uint4 data[STORES];
#pragma unroll
  for (u32 i = 0; i < STORES; ++i) data[i] = shared_load(staged(staging, AT_ONCE * i + lane / CHUNKS, chunk));
#pragma unroll
  for (u32 i = 0; i < STORES; ++i) {
    const u64 to = __shfl_sync(0xffffffffu, mine, first + AT_ONCE * i + lane / CHUNKS);
    store_16_if(to != 0, to + 16 * chunk, data[i]);
  }
}

// What this thread's two rows of a product are multiplied by on their way.
static __device__ __forceinline__ float2 result_scales(const MoePlan &plan, const Facts &facts, u32 half, u32 lane) {
  float2 scale = of_rows(facts.row_scale, half, lane);
#if XSTAGE_COMBINE == XSTAGE_COMBINE_FP8
  scale.x *= plan.result_inverse, scale.y *= plan.result_inverse;
#endif
  return scale;
}

static __device__ __forceinline__ void combine(const MoePlan &plan, u32 staging, const Facts &facts, const Scales &scales, const float (&d)[HALF], const Task &task, u32 half, u32 lane) {
#if XSTAGE_COMBINE != XSTAGE_COMBINE_NONE
  const float2 scale = result_scales(plan, facts, half, lane);
#if XSTAGE_COMBINE == XSTAGE_COMBINE_F32
#pragma unroll
  for (u32 part = 0; part < 2; ++part) {
    __syncwarp();  // the staged rows may be written again
#pragma unroll
    for (u32 g = 0; g < 8; ++g) {
      const u32 j = 8 * part + g;
      const float2 s = scales[j];
#pragma unroll
      for (u32 i = 0; i < 2; ++i) {
        const float r = i ? scale.y : scale.x;
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(staged(staging, lane / 4 + 8 * i, 2 * g + (lane & 3) / 2) + 8 * (lane & 1)),
                     "f"(d[4 * j + 2 * i] * r * s.x), "f"(d[4 * j + 2 * i + 1] * r * s.y)
                     : "memory");
      }
    }
    __syncwarp();
    store_segments(plan, staging, facts.slot, 16 * half, lane, 4 * plan.hidden, 4 * (task.column * TILE + HALF * part));
  }
#elif XSTAGE_COMBINE == XSTAGE_COMBINE_FP8
  // A thread's four of 16 columns lie together, as those of FP8 activations do: the owner puts them in order at no cost (reduce_tokens).
  const u32 row = (lane & 7) + (lane & 8);
  __syncwarp();  // the staged rows may be written again
#pragma unroll
  for (u32 j = 0; j < 16; j += 4) {
    u32 codes[2][2];
#pragma unroll
    for (u32 h = 0; h < 2; ++h) {
      const float2 s = scales[j + 2 * h], t = scales[j + 2 * h + 1];
      const float *const e = &d[4 * (j + 2 * h)];
      codes[h][0] = pack_fp8(e[0] * scale.x * s.x, e[1] * scale.x * s.y, e[4] * scale.x * t.x, e[5] * scale.x * t.y);
      codes[h][1] = pack_fp8(e[2] * scale.y * s.x, e[3] * scale.y * s.y, e[6] * scale.y * t.x, e[7] * scale.y * t.y);
    }
    store_matrices(staged(staging, row, j / 2 + (lane >> 4)), codes[0][0], codes[0][1], codes[1][0], codes[1][1]);
  }
  __syncwarp();
  store_segments(plan, staging, facts.slot, 16 * half, lane, plan.hidden, task.column * TILE);
#else
  const u32 row = (lane & 7) + (lane & 8);
  __syncwarp();  // the staged rows may be written again
#pragma unroll
  for (u32 j = 0; j < 16; j += 2) {
    const float2 s = scales[j], t = scales[j + 1];
    const float *e = &d[4 * j];
    store_matrices(staged(staging, row, j + (lane >> 4)), pack_bf16(e[0] * scale.x * s.x, e[1] * scale.x * s.y), pack_bf16(e[2] * scale.y * s.x, e[3] * scale.y * s.y),
                   pack_bf16(e[4] * scale.x * t.x, e[5] * scale.x * t.y), pack_bf16(e[6] * scale.y * t.x, e[7] * scale.y * t.y));
  }
  __syncwarp();
  store_segments(plan, staging, facts.slot, 16 * half, lane, 2 * plan.hidden, 2 * task.column * TILE);
#endif
#else
  // The products must not be optimised away, and nothing else may remain of the epilogue.
#pragma unroll
  for (u32 i = 0; i < HALF; ++i) asm volatile("" ::"f"(d[i]));
#endif
}
