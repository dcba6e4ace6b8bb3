// One operation of each flavour. The macros name the one that burst.cu is compiled for (xstage_bench/device/cuda/variant.py sets them);
// a new flavour is one function here, or in a file of the user's own, and one entry in xstage_bench/schedule/flavour.py.
//
// volatile and the memory clobber keep the operations between the clock reads and in program order; the SASS test proves that they are.
#pragma once

#include "stamps.cuh"

#ifndef XSTAGE_FLAVOUR
#define XSTAGE_FLAVOUR st_v4
#endif
#ifndef XSTAGE_KIND
#define XSTAGE_KIND 0
#endif
#ifndef XSTAGE_BYTES  // of a lane, or of a bulk copy
#define XSTAGE_BYTES 16
#endif

#define XSTAGE_STORE 0
#define XSTAGE_REDUCE 1
#define XSTAGE_BULK 2
#define XSTAGE_BULK_REDUCE 3
#define XSTAGE_TENSOR 4
#define XSTAGE_IS_BULK (XSTAGE_KIND >= XSTAGE_BULK)
#define XSTAGE_IS_TENSOR (XSTAGE_KIND == XSTAGE_TENSOR)
#define XSTAGE_REDUCES (XSTAGE_KIND == XSTAGE_REDUCE || XSTAGE_KIND == XSTAGE_BULK_REDUCE)

#ifdef XSTAGE_OWN_FLAVOUR
#include "xstage_own_flavour.cuh"
#endif

#define XSTAGE_DEFINE_ST_V4(name, instruction) \
  static __device__ __forceinline__ void name(char *address, u32 x, u32 y, u32 z, u32 w) { \
    asm volatile(instruction " [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory"); \
  }

// 16 bytes per lane, 512 bytes per warp-store.
XSTAGE_DEFINE_ST_V4(st_v4, "st.global.v4.b32")
XSTAGE_DEFINE_ST_V4(st_v4_cs, "st.global.cs.v4.b32")
XSTAGE_DEFINE_ST_V4(st_v4_cg, "st.global.cg.v4.b32")
XSTAGE_DEFINE_ST_V4(st_v4_wt, "st.global.wt.v4.b32")
XSTAGE_DEFINE_ST_V4(st_v4_relaxed_sys, "st.relaxed.sys.global.v4.b32")
XSTAGE_DEFINE_ST_V4(st_v4_release_sys, "st.release.sys.global.v4.b32")
XSTAGE_DEFINE_ST_V4(st_v4_volatile, "st.volatile.global.v4.b32")

static __device__ __forceinline__ void st_v2(char *address, u32 x, u32 y, u32, u32) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(address), "r"(x), "r"(y) : "memory");
}

static __device__ __forceinline__ void st_b32(char *address, u32 x, u32, u32, u32) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(x) : "memory");
}

// Reductions at system scope: to a peer's memory nothing narrower means anything. All words of a lane's vector are alike.
static __device__ __forceinline__ void red_f32(char *address, u32 x, u32, u32, u32) {
  asm volatile("red.relaxed.sys.global.add.f32 [%0], %1;" ::"l"(address), "f"(__uint_as_float(x)) : "memory");
}

#if __CUDA_ARCH__ >= 900
static __device__ __forceinline__ void red_v4_f32(char *address, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("red.relaxed.sys.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(address), "f"(__uint_as_float(x)), "f"(__uint_as_float(y)),
               "f"(__uint_as_float(z)), "f"(__uint_as_float(w))
               : "memory");
}

static __device__ __forceinline__ void red_bf16x2(char *address, u32 x, u32, u32, u32) {
  asm volatile("red.relaxed.sys.global.add.noftz.bf16x2 [%0], %1;" ::"l"(address), "r"(x) : "memory");
}

static __device__ __forceinline__ void red_v4_bf16x2(char *address, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("red.relaxed.sys.global.add.noftz.v4.bf16x2 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}

// Bulk copies out of shared memory: started by one lane, carried out by the SM's copy engine; each is a bulk group of its own.
static __device__ __forceinline__ void bulk_store(char *address, u32 source) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(address), "r"(source), "n"(XSTAGE_BYTES) : "memory");
}

static __device__ __forceinline__ void bulk_reduce_f32(char *address, u32 source) {
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(address), "r"(source), "n"(XSTAGE_BYTES)
               : "memory");
}

// A box of rows of 128 bytes (64 bf16) of the two-dimensional array that a tensor map describes; a bulk group of its own like the others.
static __device__ __forceinline__ void tensor_store(u64 map, u32 column, u32 row, u32 source) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column), "r"(row), "r"(source) : "memory");
}

// The host has copied the map to global memory before the launch: what the descriptor cache holds of that address may be older. Returns the
// address shuffled, so that it stays in a register: the compiler would load the kernel's parameter again inside the timed window.
static __device__ __forceinline__ u64 tensor_map_ready(u64 map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.sys [%0], 128;" ::"l"(map) : "memory");
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
  return __shfl_sync(0xffffffffu, map, 0);
}

static __device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
static __device__ __forceinline__ void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }  // source reusable
static __device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }            // writes made, to this thread
// Shared memory written by ordinary stores is read by the copy engine only after this.
static __device__ __forceinline__ void bulk_source_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif

#if __CUDA_ARCH__ >= 1000
// 32 bytes per lane, 1024 per warp-store.
static __device__ __forceinline__ void st_v8(char *address, u32 x, u32 y, u32 z, u32 w) {
  asm volatile("st.global.v8.b32 [%0], {%1, %2, %3, %4, %1, %2, %3, %4};" ::"l"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
#endif
