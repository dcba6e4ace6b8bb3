// One warp-store of each flavour. XSTAGE_FLAVOUR names the one that burst.cu is compiled for; a new flavour is one function here
// and one entry in xstage_bench/schedule.py.
#pragma once

#include "stamps.cuh"

#ifndef XSTAGE_FLAVOUR
#define XSTAGE_FLAVOUR st_v4
#endif

// st.v4: st.global.v4, 16 bytes per lane, 512 bytes per warp-store. volatile and the memory clobber keep the stores between the clock
// reads and in program order; the SASS test proves that they are.
static __device__ __forceinline__ void st_v4(char *address, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
