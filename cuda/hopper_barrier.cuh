// Barriers of sm_90 between the warpgroups of one CTA: mbarriers for data that the copy engine brings, named barriers for turns.
#pragma once

#include "stamps.cuh"

static constexpr u64 BARRIER_TIMEOUT_NS = 4000000000ull;

static __device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ void barrier_init(u32 bar, u32 arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

// Makes the initialisation known to the copy engine too; before the first barrier of the whole CTA.
static __device__ __forceinline__ void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

static __device__ __forceinline__ void barrier_arrive(u32 bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

static __device__ __forceinline__ void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

static __device__ __forceinline__ bool barrier_try(u32 bar, u32 parity) {
  u32 done;
  asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
               : "=r"(done)
               : "r"(bar), "r"(parity)
               : "memory");
  return done;
}

// Ends the launch with an error. A barrier inside a CTA fails only by a bug, and an error is better than a node that hangs. A store
// that faults and no __trap: with a trap in it ptxas gives a function that raises its registers no more than it was launched with.
static __device__ __forceinline__ void fault() { asm volatile("st.global.u32 [%0], 0;" ::"l"(0ull) : "memory"); }

static __device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
  if (barrier_try(bar, parity)) return;
  const u64 give_up = global_timer_ns() + BARRIER_TIMEOUT_NS;
  while (!barrier_try(bar, parity))
    if (global_timer_ns() > give_up) fault();
}

static __device__ __forceinline__ void named_sync(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
static __device__ __forceinline__ void named_arrive(u32 id, u32 threads) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// A ring of stages: where one side is in it.
struct Ring {
  u32 stage = 0, parity = 0;
  template <u32 STAGES>
  __device__ __forceinline__ void advance() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

template <u32 COUNT>
static __device__ __forceinline__ void registers_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <u32 COUNT>
static __device__ __forceinline__ void registers_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
