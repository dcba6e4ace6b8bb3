// What follows a tile's products. Linear-1: SwiGLU, the activations stay here. Linear-2: each row goes to the rank that owns its token.
//
// A warp's 16 rows pass through its own part of shared memory, so that a row leaves as one segment of 256 bytes by half a warp; no
// warp waits for another one.
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
static __device__ __forceinline__ float silu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

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

struct Rows {  // of one warp in one product: 16 rows from `first` of all rows on; this thread has rows lane / 4 and lane / 4 + 8
  u32 first, lane;
  float scale[2];
};
static __device__ __forceinline__ Rows rows_of(const float *scales, u32 first, u32 lane) {
  Rows r = {first, lane, {1.0f, 1.0f}};
#if XSTAGE_FP8
  r.scale[0] = scales[first + lane / 4];
  r.scale[1] = scales[first + lane / 4 + 8];
#endif
  return r;
}
// Scales of a tile's 128 columns, four in each lane: kept whole in every thread they push the accumulators out to local memory.
struct Columns {
  float4 four;
};
static __device__ __forceinline__ Columns columns_of(const float *scales, u32 lane) {
#if XSTAGE_FP8
  return {__ldg((const float4 *)scales + lane)};
#else
  return {};
#endif
}
// Of this thread's two columns in group j of eight.
static __device__ __forceinline__ float2 column_scale(const Columns &columns, u32 j, u32 lane) {
#if XSTAGE_FP8
  const u32 from = 2 * j + (lane & 3) / 2;
  const float x = __shfl_sync(0xffffffffu, columns.four.x, from), y = __shfl_sync(0xffffffffu, columns.four.y, from);
  const float z = __shfl_sync(0xffffffffu, columns.four.z, from), w = __shfl_sync(0xffffffffu, columns.four.w, from);
  return lane & 1 ? make_float2(z, w) : make_float2(x, y);
#else
  return make_float2(1.0f, 1.0f);
#endif
}

// Gate and up of eight columns lie in neighbouring groups, so both are in this thread. FP8 activations keep the order in which
// a thread holds them; the second linear layer's weights are permuted likewise (xstage_bench/fused/moe_weights.py).
static __device__ __forceinline__ void swiglu(const MoePlan &plan, u32 staging, const Rows &rows, const float (&d)[HALF], const Columns &scales, u32 column) {
  const u32 lane = rows.lane, row = (lane & 7) + (lane & 8);
#if XSTAGE_FP8
  const float inverse[2] = {__fdividef(1.0f, ((const float *)plan.act_scale)[rows.first + lane / 4]),
                            __fdividef(1.0f, ((const float *)plan.act_scale)[rows.first + lane / 4 + 8])};
#endif
  __syncwarp();  // the rows before these have been read
#pragma unroll
  for (u32 part = 0; part < 8; part += 4) {
    float a[4][4];
#pragma unroll
    for (u32 h = 0; h < 4; ++h) {
      const u32 g = part + h;
      const float2 gate = column_scale(scales, 2 * g, lane), up = column_scale(scales, 2 * g + 1, lane);
#pragma unroll
      for (u32 i = 0; i < 2; ++i) {
        const float s = rows.scale[i];
        float x = silu(d[8 * g + 2 * i] * s * gate.x) * (d[8 * g + 4 + 2 * i] * s * up.x);
        float y = silu(d[8 * g + 2 * i + 1] * s * gate.y) * (d[8 * g + 4 + 2 * i + 1] * s * up.y);
#if XSTAGE_FP8
        x *= inverse[i], y *= inverse[i];
#endif
        a[h][2 * i] = x, a[h][2 * i + 1] = y;
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
#if XSTAGE_PUBLISH == XSTAGE_PUBLISH_BULK
  async_proxy_fence();
  __syncwarp();
  if (lane == 0) tensor_store(&plan.act_out, staging, column * ACT_COLUMNS, rows.first, 0);
#else
  __syncwarp();
  constexpr u32 CHUNKS = ACT_COLUMNS * ELEMENT / 16, AT_ONCE = 32 / CHUNKS;
  const u32 chunk = lane % CHUNKS;
  char *const to = (char *)plan.activations + (u64)rows.first * plan.inter * ELEMENT + column * ACT_COLUMNS * ELEMENT + 16 * chunk;
#pragma unroll
  for (u32 r = lane / CHUNKS; r < 16; r += AT_ONCE) store_16(to + (u64)r * plan.inter * ELEMENT, shared_load(staged_activation(staging, r, chunk)));
#endif
}

// Half a warp stores one row's segment of 256 bytes to its owner; `segment` is where in the row.
static __device__ __forceinline__ void store_segments(const MoePlan &plan, u32 staging, u32 slots, u32 lane, u32 row_bytes, u32 segment) {
  const u32 chunk = lane & 15;
#pragma unroll
  for (u32 i = 0; i < 8; ++i) {
    const u32 slot = __shfl_sync(0xffffffffu, slots, 2 * i + lane / 16);
    const uint4 data = shared_load(staged(staging, 2 * i + lane / 16, chunk));
    if (slot != NO_ROW) store_16((char *)plan.slots[slot >> 28] + (u64)(slot & 0xfffffff) * row_bytes + segment + 16 * chunk, data);
  }
}

static __device__ __forceinline__ void combine(const MoePlan &plan, u32 staging, const Rows &rows, const float (&d)[HALF], const Columns &scales, u32 column) {
#if XSTAGE_COMBINE != XSTAGE_COMBINE_NONE
  const u32 lane = rows.lane;
  const u32 slots = ((const u32 *)plan.row_slot)[rows.first + (lane & 15)];
#if XSTAGE_COMBINE == XSTAGE_COMBINE_F32
#pragma unroll
  for (u32 part = 0; part < 2; ++part) {
    __syncwarp();
#pragma unroll
    for (u32 g = 0; g < 8; ++g) {
      const u32 j = 8 * part + g;
      const float2 s = column_scale(scales, j, lane);
#pragma unroll
      for (u32 i = 0; i < 2; ++i)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(staged(staging, lane / 4 + 8 * i, 2 * g + (lane & 3) / 2) + 8 * (lane & 1)),
                     "f"(d[4 * j + 2 * i] * rows.scale[i] * s.x), "f"(d[4 * j + 2 * i + 1] * rows.scale[i] * s.y)
                     : "memory");
    }
    __syncwarp();
    store_segments(plan, staging, slots, lane, 4 * plan.hidden, 4 * (column * TILE + HALF * part));
  }
#else
  const u32 row = (lane & 7) + (lane & 8);
  __syncwarp();
#pragma unroll
  for (u32 j = 0; j < 16; j += 2) {
    const float2 s = column_scale(scales, j, lane), t = column_scale(scales, j + 1, lane);
    const float *e = &d[4 * j];
    store_matrices(staged(staging, row, j + (lane >> 4)), pack_bf16(e[0] * rows.scale[0] * s.x, e[1] * rows.scale[0] * s.y),
                   pack_bf16(e[2] * rows.scale[1] * s.x, e[3] * rows.scale[1] * s.y), pack_bf16(e[4] * rows.scale[0] * t.x, e[5] * rows.scale[0] * t.y),
                   pack_bf16(e[6] * rows.scale[1] * t.x, e[7] * rows.scale[1] * t.y));
  }
  __syncwarp();
  store_segments(plan, staging, slots, lane, 2 * plan.hidden, 2 * column * TILE);
#endif
#else
  // The products must not be optimised away, and nothing else may remain of the epilogue.
#pragma unroll
  for (u32 i = 0; i < HALF; ++i) asm volatile("" ::"f"(d[i]));
#endif
}
