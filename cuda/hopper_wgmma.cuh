// Tensor-core products of a warpgroup (sm_90a): D[64 x N] += A[64 x 16] * B[16 x N], bf16 in, float32 out.
//
// A thread's accumulators: element 4 j + 2 i + e of D is row lane / 4 + 8 i of its warp's 16 rows, column 8 j + 2 (lane % 4) + e.
// The same registers, packed to bf16 in order, are the A of a following product, 16 columns of D to a step.
#pragma once

#include "stamps.cuh"

// Shared-memory operand in rows of 128 bytes, 128-byte swizzle, groups of 8 rows 1024 bytes apart. `leading_bytes` is the distance
// between blocks of 64 columns of a transposed operand (rows are the summed dimension); the other kind ignores it.
static __device__ __forceinline__ u64 matrix_descriptor(u32 address, u32 leading_bytes = 16) {
  return (u64)((address & 0x3ffff) >> 4) | (u64)(leading_bytes >> 4) << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

// Before the first product that reads registers written by ordinary instructions.
static __device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
static __device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// Keeps the compiler from moving uses of these registers to before the wait that precedes this.
template <int COUNT>
static __device__ __forceinline__ void settle(float (&registers)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}

template <int N>
struct Product;  // one specialisation for each width in use

// Placeholders and operands of the first 8, 16, ... accumulators.
#define XSTAGE_D1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define XSTAGE_D2 XSTAGE_D1 ", " "%8, %9, %10, %11, %12, %13, %14, %15"
#define XSTAGE_D3 XSTAGE_D2 ", " "%16, %17, %18, %19, %20, %21, %22, %23"
#define XSTAGE_D4 XSTAGE_D3 ", " "%24, %25, %26, %27, %28, %29, %30, %31"
#define XSTAGE_D5 XSTAGE_D4 ", " "%32, %33, %34, %35, %36, %37, %38, %39"
#define XSTAGE_D6 XSTAGE_D5 ", " "%40, %41, %42, %43, %44, %45, %46, %47"
#define XSTAGE_D7 XSTAGE_D6 ", " "%48, %49, %50, %51, %52, %53, %54, %55"
#define XSTAGE_D8 XSTAGE_D7 ", " "%56, %57, %58, %59, %60, %61, %62, %63"
#define XSTAGE_D9 XSTAGE_D8 ", " "%64, %65, %66, %67, %68, %69, %70, %71"
#define XSTAGE_D10 XSTAGE_D9 ", " "%72, %73, %74, %75, %76, %77, %78, %79"
#define XSTAGE_D11 XSTAGE_D10 ", " "%80, %81, %82, %83, %84, %85, %86, %87"
#define XSTAGE_D12 XSTAGE_D11 ", " "%88, %89, %90, %91, %92, %93, %94, %95"
#define XSTAGE_EIGHT(c) "+f"(d[8 * c]), "+f"(d[8 * c + 1]), "+f"(d[8 * c + 2]), "+f"(d[8 * c + 3]), "+f"(d[8 * c + 4]), "+f"(d[8 * c + 5]), "+f"(d[8 * c + 6]), "+f"(d[8 * c + 7])
#define XSTAGE_O1 XSTAGE_EIGHT(0)
#define XSTAGE_O2 XSTAGE_O1, XSTAGE_EIGHT(1)
#define XSTAGE_O3 XSTAGE_O2, XSTAGE_EIGHT(2)
#define XSTAGE_O4 XSTAGE_O3, XSTAGE_EIGHT(3)
#define XSTAGE_O5 XSTAGE_O4, XSTAGE_EIGHT(4)
#define XSTAGE_O6 XSTAGE_O5, XSTAGE_EIGHT(5)
#define XSTAGE_O7 XSTAGE_O6, XSTAGE_EIGHT(6)
#define XSTAGE_O8 XSTAGE_O7, XSTAGE_EIGHT(7)
#define XSTAGE_O9 XSTAGE_O8, XSTAGE_EIGHT(8)
#define XSTAGE_O10 XSTAGE_O9, XSTAGE_EIGHT(9)
#define XSTAGE_O11 XSTAGE_O10, XSTAGE_EIGHT(10)
#define XSTAGE_O12 XSTAGE_O11, XSTAGE_EIGHT(11)

// N columns have N / 2 accumulators a thread, N / 16 groups of eight; T0... are the placeholders after those.
#define XSTAGE_PRODUCT(N, D, O, T0, T1, T2, T3, T4) \
  template <> \
  struct Product<N> { \
    /* A and B from shared memory, the summed dimension contiguous in both. */ \
    static __device__ __forceinline__ void shared_shared(float (&d)[N / 2], u64 a, u64 b, bool accumulate) { \
      asm volatile("{ .reg .pred p; setp.ne.b32 p, " T2 ", 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" D "}, " T0 ", " T1 \
                   ", p, 1, 1, 0, 0; }" \
                   : O \
                   : "l"(a), "l"(b), "r"((u32)accumulate)); \
    } \
    /* A from registers, B from shared memory in rows of the summed dimension (transposed). */ \
    static __device__ __forceinline__ void registers_shared(float (&d)[N / 2], u32 a0, u32 a1, u32 a2, u32 a3, u64 b) { \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 {" D "}, {" T0 ", " T1 ", " T2 ", " T3 "}, " T4 ", 1, 1, 1, 1;" \
                   : O \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b)); \
    } \
  };

XSTAGE_PRODUCT(64, XSTAGE_D4, XSTAGE_O4, "%32", "%33", "%34", "%35", "%36")
XSTAGE_PRODUCT(80, XSTAGE_D5, XSTAGE_O5, "%40", "%41", "%42", "%43", "%44")
XSTAGE_PRODUCT(96, XSTAGE_D6, XSTAGE_O6, "%48", "%49", "%50", "%51", "%52")
XSTAGE_PRODUCT(112, XSTAGE_D7, XSTAGE_O7, "%56", "%57", "%58", "%59", "%60")
XSTAGE_PRODUCT(128, XSTAGE_D8, XSTAGE_O8, "%64", "%65", "%66", "%67", "%68")
XSTAGE_PRODUCT(144, XSTAGE_D9, XSTAGE_O9, "%72", "%73", "%74", "%75", "%76")
XSTAGE_PRODUCT(160, XSTAGE_D10, XSTAGE_O10, "%80", "%81", "%82", "%83", "%84")
XSTAGE_PRODUCT(176, XSTAGE_D11, XSTAGE_O11, "%88", "%89", "%90", "%91", "%92")
XSTAGE_PRODUCT(192, XSTAGE_D12, XSTAGE_O12, "%96", "%97", "%98", "%99", "%100")
