// Clocks and waits. Every wait in this project ends by itself: a kernel that spins for ever takes the node with it.
#pragma once

typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ __forceinline__ u64 sm_clock() {
  u64 t;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory");
  return t;
}

// Common to all SMs of one GPU, not comparable between GPUs; its tick is 32 ns on H200 and 1 us on some parts, so it is measured.
static __device__ __forceinline__ u64 global_timer_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
  return t;
}

static __device__ __forceinline__ u32 sm_id() {
  u32 id;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
  return id;
}

// A barrier of the storing warps only. bar.sync orders within the CTA and does not wait for global stores to drain;
// __threadfence here would empty the very stage that is being measured.
static __device__ __forceinline__ void producer_barrier(u32 threads) {
  asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
}
