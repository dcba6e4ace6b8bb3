// The last act of a tile, the one replaceable piece: a warp's 16 rows go to the memory of the ranks that own them. The local
// flavour is the same code with local addresses. A warp waits for no other warp: it stages its rows in its own part of shared memory.
#pragma once

#include "attention_plan.cuh"
#include "attention_softmax.cuh"

static constexpr u32 WARP_ROWS = 16;
static constexpr u32 CHUNKS = HEAD_DIM / 8;  // of 16 bytes, in a row
static constexpr u32 ROWS_PER_STORE = 32 / CHUNKS;

// Rows as the copy engine wants them, 128-byte swizzle, in the layout of Q; conflict-free for stmatrix and for reading rows alike. The
// swizzle is a function of the address, so every warp's part must start at a multiple of 1024 bytes.
static constexpr u32 STAGED_HALF = QUERIES * ROW_BYTES;
static __device__ __forceinline__ u32 staged(u32 base, u32 row, u32 chunk) {
  return base + (chunk / 8) * STAGED_HALF + row * ROW_BYTES + (((chunk & 7) ^ (row & 7)) << 4);
}

struct Destination {
  u32 head, row, lane;  // the head among all heads, the first row of this warp
};

// Whatever must be over before the staged rows are written again. `publish`: the stores shall be performed, so that a release publishes them.
static __device__ __forceinline__ void stage_is_free(u32 lane, bool publish) {
#if XSTAGE_STORE == XSTAGE_STORE_BULK
  if (lane == 0) {
    if (publish) bulk_wait();
    else bulk_wait_source();
  }
#endif
  __syncwarp();
}

static __device__ __forceinline__ void stage_rows(u32 base, u32 lane, const float (&o)[HEAD_DIM / 2], float scale0, float scale1) {
  const u32 row = (lane & 7) + (lane & 8);
#pragma unroll
  for (u32 j = 0; j < HEAD_DIM / 16; ++j) {
    const float *d = &o[8 * j];
    store_matrices(staged(base, row, 2 * j + (lane >> 4)), pack_bf16(d[0] * scale0, d[1] * scale0), pack_bf16(d[2] * scale1, d[3] * scale1),
                   pack_bf16(d[4] * scale0, d[5] * scale0), pack_bf16(d[6] * scale1, d[7] * scale1));
  }
}

// 16 bytes a lane, whole rows of the head side by side. Rows beyond the last are left out.
static __device__ __forceinline__ void store_by_lanes(const AttentionPlan &plan, u32 base, const Destination &to) {
  const u32 chunk = to.lane % CHUNKS, first = to.lane / CHUNKS;
  uint4 data[WARP_ROWS / ROWS_PER_STORE];
  uint4 *address[WARP_ROWS / ROWS_PER_STORE];
#pragma unroll
  for (u32 i = 0; i < WARP_ROWS / ROWS_PER_STORE; ++i) {
    data[i] = shared_load(staged(base, first + i * ROWS_PER_STORE, chunk));
    const u32 row = to.row + first + i * ROWS_PER_STORE, owner = row / plan.rows_per_owner;
    const u64 at = ((u64)(row - owner * plan.rows_per_owner) * plan.heads_total + to.head) * HEAD_DIM + 8 * chunk;
    address[i] = row < plan.seq ? (uint4 *)(plan.out[owner] + 2 * at) : nullptr;
  }
#pragma unroll
  for (u32 i = 0; i < WARP_ROWS / ROWS_PER_STORE; ++i)
    if (address[i]) asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address[i]), "r"(data[i].x), "r"(data[i].y), "r"(data[i].z), "r"(data[i].w) : "memory");
}

static __device__ __forceinline__ void store_rows(const AttentionPlan &plan, u32 base, const Destination &to) {
#if XSTAGE_STORE == XSTAGE_STORE_BULK
  async_proxy_fence();
  __syncwarp();
  if (to.row >= plan.seq) return;
  const u32 owner = to.row / plan.rows_per_owner, last = (min(to.row + WARP_ROWS, plan.seq) - 1) / plan.rows_per_owner;
  if (owner == last) {
    if (to.lane == 0) {
#pragma unroll
      for (u32 h = 0; h < HALVES; ++h) tensor_store(&plan.out_map[owner], base + h * STAGED_HALF, 64 * h, to.row - owner * plan.rows_per_owner, to.head);
      bulk_commit();
    }
    return;
  }
  // Rows of two owners: a box that begins before a tensor's first row ends the launch with an illegal instruction.
#else
  __syncwarp();
#endif
  store_by_lanes(plan, base, to);
}
