// What is stored, so that it can be checked: word 0 counts the warp-stores of one launch item, so it differs for every burst and
// repetition; the other words name the item, the producer, the warp and the lane. A store that was dropped, doubled or sent
// elsewhere leaves 16 bytes that cannot be mistaken for the right ones.
#pragma once

#include "stamps.cuh"

static constexpr u32 GROUP = 4;              // warp-stores per unrolled group; a burst starts on a group's boundary
static constexpr u32 WARP_STORE_BYTES = 512;
static constexpr u32 GROUP_BYTES = GROUP * WARP_STORE_BYTES;

struct Pattern {
  u32 x, y, z, w;
};

// Pattern of warp-store 0; warp-store j has x + j.
static __device__ __forceinline__ Pattern pattern_of(u32 tag, u32 producer, u32 warp, u32 lane) {
  Pattern p;
  p.x = tag;
  p.y = tag ^ (producer << 16 | warp << 8 | lane);
  p.z = producer * 0x9E3779B9u + lane;
  p.w = ~tag;
  return p;
}

// Groups of one warp inside its producer's window; bursts longer than that wrap around.
static __device__ __forceinline__ u32 groups_per_warp(u32 window_bytes, u32 warps) { return window_bytes / warps / GROUP_BYTES; }
