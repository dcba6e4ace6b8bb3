// The bulk tensor copy engine of sm_90: boxes of a three-dimensional tensor to shared memory and back, 128-byte swizzle.
#pragma once

#include "hopper_barrier.cuh"

struct alignas(64) TensorMap {  // a CUtensorMap, made by cuTensorMapEncodeTiled
  u64 opaque[16];
};

static __device__ __forceinline__ void tensor_prefetch(const TensorMap *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Coordinates in elements, the contiguous dimension first. What lies outside of the tensor arrives as zeros and counts as bytes.
static __device__ __forceinline__ void tensor_load(u32 to, const TensorMap *map, u32 bar, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
               "l"(map), "r"(x), "r"(y), "r"(z), "r"(bar)
               : "memory");
}

// What lies outside of the tensor is not written.
static __device__ __forceinline__ void tensor_store(const TensorMap *map, u32 from, int x, int y, int z) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map), "r"(x), "r"(y), "r"(z), "r"(from)
               : "memory");
}

static __device__ __forceinline__ void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// The source may be written again.
static __device__ __forceinline__ void bulk_wait_source() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
// The writes are performed for the executing thread; a release publishes them to others.
static __device__ __forceinline__ void bulk_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Between ordinary stores to shared memory and the copy engine or tensor cores that read them; by each writing thread.
static __device__ __forceinline__ void async_proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Four 8x8 matrices of 16-bit elements from a warp's accumulator layout to rows in shared memory; lane l names row l % 8 of matrix l / 8.
static __device__ __forceinline__ void store_matrices(u32 row, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}

static __device__ __forceinline__ uint4 shared_load(u32 from) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(from) : "memory");
  return v;
}
