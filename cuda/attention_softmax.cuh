// Online softmax of a warpgroup's block of scores, in registers. A thread holds two rows (i = 0, 1), four threads share a row.
#pragma once

#include "hopper_wgmma.cuh"

static __device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

static __device__ __forceinline__ u32 pack_bf16(float low, float high) {
  u32 pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <int N>
struct Softmax {
  float highest[2], sum[2];  // `highest` is what exponents are taken relative to; `sum` is this thread's part of the row
  float factor[2];           // what the accumulated output must be multiplied with

  // The first block of a tile: nothing is accumulated yet.
  __device__ __forceinline__ void first(float (&s)[N / 2], float scale_log2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      highest[i] = row_max(s, i);
      sum[i] = 0.0f;
    }
    exponentials(s, scale_log2);
  }

  // Returns whether `factor` is other than one for any row of the warp. With XSTAGE_LAZY the reference stays while the new maximum is
  // less than 2^8 above it: the result is the same sum over the same reference, and most blocks need no rescaling.
  __device__ __forceinline__ bool next(float (&s)[N / 2], float scale_log2) {
    bool changed = false;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float rise = (row_max(s, i) - highest[i]) * scale_log2;
      const bool raise = rise > (XSTAGE_LAZY ? 8.0f : 0.0f);
      factor[i] = raise ? exp2_fast(-rise) : 1.0f;
      highest[i] = raise ? highest[i] + rise / scale_log2 : highest[i];
      sum[i] *= factor[i];
      changed |= raise;
    }
    exponentials(s, scale_log2);
    return __any_sync(0xffffffffu, changed);
  }

  // One over the whole row's sum.
  __device__ __forceinline__ float inverse(int i) const {
    float all = sum[i];
    all += __shfl_xor_sync(0xffffffffu, all, 1);
    all += __shfl_xor_sync(0xffffffffu, all, 2);
    return 1.0f / all;
  }

 private:
  static __device__ __forceinline__ float row_max(const float (&s)[N / 2], int i) {
    float m = fmaxf(s[2 * i], s[2 * i + 1]);
#pragma unroll
    for (int j = 1; j < N / 8; ++j) m = fmaxf(m, fmaxf(s[4 * j + 2 * i], s[4 * j + 2 * i + 1]));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    return fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
  }

  __device__ __forceinline__ void exponentials(float (&s)[N / 2], float scale_log2) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float reference = highest[i] * scale_log2;
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float &x = s[4 * j + 2 * i + e];
          x = exp2_fast(fmaf(x, scale_log2, -reference));
          sum[i] += x;
        }
      }
    }
  }
};

// Columns from `valid` on do not exist.
template <int N>
static __device__ __forceinline__ void mask_columns(float (&s)[N / 2], u32 valid) {
  const u32 mine = 2 * (threadIdx.x & 3);
#pragma unroll
  for (int j = 0; j < N / 2; ++j)
    if (8 * (j / 4) + mine + (j & 1) >= valid) s[j] = -__int_as_float(0x7f800000);
}
