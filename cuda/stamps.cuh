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

// The value, in a register that the compiler cannot fill anew: it would do so between two stores, and wait for the first one there.
static __device__ __forceinline__ u32 in_register(u32 value) {
  u32 kept;  // volatile: two values that are alike have two registers, as the vectors of a store want them
  asm volatile("shfl.sync.idx.b32 %0, %1, %2, 31, -1;" : "=r"(kept) : "r"(value), "r"(threadIdx.x % 32));
  return kept;
}

// A word of shared memory for `clock_when_taken`, made by all threads at the start of a kernel; returns its address.
static __device__ __forceinline__ u32 taken_mask(u32 &word) {
  if (threadIdx.x == 0) *(volatile u32 *)&word = 0xffffffff;
  __syncthreads();
  return in_register((u32)__cvta_generic_to_shared(&word));
}

// Adds one where it stands, and not at the end of the turn before, where it would wait for the stores of that turn.
static __device__ __forceinline__ void count_up(u32 &word) { asm volatile("add.u32 %0, %0, 1;" : "+r"(word)::"memory"); }

// The clock when the SM has taken every store that this warp has issued: a read of shared memory passes the memory pipeline behind them, and
// the warp can only meet under the mask that it returns. `issued` is a clock read behind the stores: without it in the address (times zero, which no
// compiler knows of an aligned address) the read may be moved before them, since they are of another memory.
static __device__ __forceinline__ u64 clock_when_taken(u32 address, u64 issued) {
  u64 t;
  address += (u32)issued & (address & 3);
  asm volatile("{\n\t.reg .u32 mask;\n\tld.volatile.shared.u32 mask, [%1];\n\tbar.warp.sync mask;\n\tmov.u64 %0, %%clock64;\n\t}"
               : "=l"(t)
               : "r"(address)
               : "memory");
  return t;
}

static __device__ __forceinline__ u64 clock_when_taken(u32 address) { return clock_when_taken(address, sm_clock()); }

// Mixes a value into `seed` where it stands, however little the mixture means: until here the value keeps its register.
static __device__ __forceinline__ u32 still_there(u32 seed, u32 value) {
  u32 mixed;
  asm volatile("xor.b32 %0, %1, %2;" : "=r"(mixed) : "r"(seed), "r"(value));
  return mixed;
}

// A barrier of the storing warps only. bar.sync orders within the CTA and does not wait for global stores to drain;
// __threadfence here would empty the very stage that is being measured.
static __device__ __forceinline__ void producer_barrier(u32 threads) {
  asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
}
