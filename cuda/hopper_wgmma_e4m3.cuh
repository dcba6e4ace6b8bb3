// As hopper_wgmma.cuh for FP8 e4m3: D[64 x 128] += A[64 x 32] * B[32 x 128], both from shared memory, float32 accumulators.
#pragma once

#include "hopper_wgmma.cuh"

template <int N>
struct ProductE4m3;

template <>
struct ProductE4m3<128> {
  static __device__ __forceinline__ void shared_shared(float (&d)[64], u64 a, u64 b, bool accumulate) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {" XSTAGE_D8 "}, %64, %65, p, 1, 1; }"
                 : XSTAGE_O8
                 : "l"(a), "l"(b), "r"((u32)accumulate));
  }
};
