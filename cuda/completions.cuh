// What makes a burst's stores readable by others, and by whom it is executed. xstage_bench/schedule/completion.py numbers them alike.
#pragma once

#include "stamps.cuh"

#ifndef XSTAGE_COMPLETION
#define XSTAGE_COMPLETION 2
#endif
#ifndef XSTAGE_BY
#define XSTAGE_BY 0
#endif
#define XSTAGE_BY_SELF 0  // every storing warp
#define XSTAGE_BY_WARP 1  // a warp of the same SM that stored nothing, as soon as the last storing warp has issued
#define XSTAGE_BY_SM 2    // an SM that stored nothing, at a time after the start of the burst
// Another warp or SM than the storing one, or less than a system-scope fence, leaves the stage as it is: it is emptied after the stamp.
#define XSTAGE_EMPTY_AFTER (XSTAGE_COMPLETION != 2 || XSTAGE_BY != XSTAGE_BY_SELF)

// After the start of the burst: enough to fill what an SM can hold, less than a short burst takes to drain.
static constexpr u32 BY_SM_DELAY_NS = 500;

// A release publishes for its whole warp (the warp meets first) and one lane executes it; a fence is executed by all lanes.
static __device__ __forceinline__ void complete(u32 *flag, u32 lane) {
#if XSTAGE_COMPLETION == 0
  __threadfence_block();
#elif XSTAGE_COMPLETION == 1
  __threadfence();
#elif XSTAGE_COMPLETION == 2
  __threadfence_system();
#elif XSTAGE_COMPLETION == 3
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
#elif XSTAGE_COMPLETION == 4
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#else
  __syncwarp();
  if (lane == 0) {
#if XSTAGE_COMPLETION == 5
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(flag) : "memory");
#elif XSTAGE_COMPLETION == 6
    asm volatile("red.release.sys.global.add.u32 [%0], 1;" ::"l"(flag) : "memory");
#elif XSTAGE_COMPLETION == 7
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flag) : "memory");
#else
    asm volatile("st.release.sys.global.u32 [%0], 1;" ::"l"(flag) : "memory");
#endif
  }
  __syncwarp();
#endif
}

// Hand over from the storing warps to the one that completes for them (barrier 2), and back (barrier 3); 0 and 1 are taken.
static __device__ __forceinline__ void hand_over(u32 threads) { asm volatile("bar.sync 2, %0;" ::"r"(threads) : "memory"); }
static __device__ __forceinline__ void hand_back(u32 threads) { asm volatile("bar.sync 3, %0;" ::"r"(threads) : "memory"); }
