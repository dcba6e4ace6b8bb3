// Which of a task's warp-stores go to the destination: number k of N does when floor((k + 1) R / N) > floor(k R / N), so R of them, evenly
// spread. A warp's own are neighbours in k, so that every warp sees the mix.
#pragma once

#include "stamps.cuh"

// What a warp carries from store to store: `at` is k R mod N, and nothing is divided between two stores.
struct Mix {
  u32 at, step, whole, threshold;
};

// `uneven` is remote modulo warps, `inverse` 65536 / warps + 1: at most 7 * 7 is divided, and a division would take longer than all else that
// prepares a task.
static __device__ __forceinline__ Mix mix_of(u32 stores, u32 remote, u32 uneven, u32 warp, u32 warps, u32 inverse) {
  const u32 whole = stores * warps, product = warp * uneven;
  return {stores * (product - (product * inverse >> 16) * warps), remote, whole, whole - remote};
}

static __device__ __forceinline__ bool remote_next(Mix &mix) {
  const bool remote = mix.at >= mix.threshold;
  mix.at += mix.step;
  if (mix.at >= mix.whole) mix.at -= mix.whole;
  return remote;
}

// The same for any k, with the divisions.
static __device__ __forceinline__ bool goes_remote(u32 k, u32 remote, u32 whole) { return (u64)k * remote % whole >= whole - remote; }
