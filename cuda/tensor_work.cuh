// The tensor-core work of a task: so many rounds of it, of known length (xstage_bench/device/cuda/tasks.py calibrates), or as many cycles of
// spinning on the clock. A round is what the loop repeats: eight mma.sync of a warp, or one wgmma of a warpgroup.
#pragma once

#include "stamps.cuh"

#ifndef XSTAGE_COMPUTE
#define XSTAGE_COMPUTE 0
#endif
#define XSTAGE_SPIN 0
#define XSTAGE_MMA 1    // m16n8k16, bf16 in, f32 out: sm_80 and later
#define XSTAGE_WGMMA 2  // m64n128k16, both operands in shared memory: sm_90a only; whole warpgroups

#if XSTAGE_COMPUTE == XSTAGE_SPIN

struct Sums {};
static constexpr u32 OPERAND_BYTES = 0;
static __device__ __forceinline__ void fill_operands(char *) {}
static __device__ __forceinline__ void clear(Sums &) {}
static __device__ __forceinline__ bool odd(const Sums &) { return false; }
static __device__ __forceinline__ void work(Sums &, const char *, u32 cycles, u64 start) {
  if (cycles)
    while (sm_clock() < start + cycles) {
    }
}

#else

#if XSTAGE_COMPUTE == XSTAGE_MMA
static constexpr u32 SUMS = 32, OPERAND_BYTES = 0;
#else
static constexpr u32 SUMS = 64, OPERAND_BYTES = (64 + 128) * 128;  // rows of 64 bf16: A, then B; both roles read the same
#endif

struct Sums {
  float v[SUMS];
};

static __device__ __forceinline__ void clear(Sums &sums) {
#pragma unroll
  for (u32 i = 0; i < SUMS; ++i) sums.v[i] = 0.0f;
}

// Decides something that the compiler cannot know, or it would leave the work out.
static __device__ __forceinline__ bool odd(const Sums &sums) {
  float total = 0.0f;
#pragma unroll
  for (u32 i = 0; i < SUMS; ++i) total += sums.v[i];
  return total == -1.0f;
}

#if XSTAGE_COMPUTE == XSTAGE_MMA

static __device__ __forceinline__ void fill_operands(char *) {}

static __device__ __forceinline__ void work(Sums &sums, const char *, u32 rounds, u64) {
  const u32 lane = threadIdx.x % 32;
  const u32 a[4] = {0x3f8f3fb1u ^ lane << 1, 0xbf913f8du ^ lane << 2, 0x3fa73fe3u ^ lane, 0xbfc13f83u ^ lane << 3};  // +-1 to 2
  const u32 b[2] = {0xbf853f9bu ^ lane << 17, 0x3fd93fa3u ^ lane << 18};
#pragma unroll 1
  for (; rounds; --rounds) {
#pragma unroll
    for (u32 i = 0; i < 8; ++i)
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                   : "+f"(sums.v[4 * i]), "+f"(sums.v[4 * i + 1]), "+f"(sums.v[4 * i + 2]), "+f"(sums.v[4 * i + 3])
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

#else

// bf16 of either sign between 1 and 2, all mantissas: what toggles decides what the work draws, and so the clock.
static __device__ __forceinline__ void fill_operands(char *operands) {
  for (u32 i = threadIdx.x; i < OPERAND_BYTES / 4; i += blockDim.x) {
    const u32 hash = i * 0x9E3779B1u ^ i >> 3;
    reinterpret_cast<u32 *>(operands)[i] = (hash & 0x807f807fu) | 0x3f803f80u;
  }
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// K-major rows of 128 bytes, 128-byte swizzle, 1024 bytes from one group of eight rows to the next.
static __device__ __forceinline__ u64 descriptor(u32 address) {
  return (u64)(address >> 4 & 0x3fffu) | 1ull << 16 | (u64)(1024 >> 4) << 32 | 1ull << 62;
}

#define XSTAGE_S4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define XSTAGE_S16(i) XSTAGE_S4(i), XSTAGE_S4(i + 4), XSTAGE_S4(i + 8), XSTAGE_S4(i + 12)

static __device__ __forceinline__ void multiply(float (&d)[SUMS], u64 a, u64 b, u32 keep) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "%64, %65, p, 1, 1, 0, 0;\n}\n"
      : XSTAGE_S16(0), XSTAGE_S16(16), XSTAGE_S16(32), XSTAGE_S16(48)
      : "l"(a), "l"(b), "r"(keep));
}

static __device__ __forceinline__ void commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
}

// Four rounds to a group, one group in flight and one behind it; then the rest, one by one, which takes a little longer each.
static __device__ __forceinline__ void work(Sums &sums, const char *operands, u32 rounds, u64) {
  const u32 at = (u32)__cvta_generic_to_shared(operands);
  const u64 a = descriptor(at), b = descriptor(at + 64 * 128);
  const u32 uniform = __shfl_sync(0xffffffffu, rounds, 0);  // or ptxas takes the loops for divergent and waits after every wgmma
  u32 keep = 0;  // the first round of a task starts from zero, or the sums would grow for ever
#pragma unroll 1
  for (u32 fours = uniform / 4; fours; --fours) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (u32 k = 0; k < 4; ++k) multiply(sums.v, a + 2 * k, b + 2 * k, k ? 1 : keep);
    commit();
    keep = 1;
  }
#pragma unroll 1
  for (u32 rest = uniform % 4; rest; --rest) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    multiply(sums.v, a, b, keep);
    commit();
    keep = 1;
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
#endif
#endif
