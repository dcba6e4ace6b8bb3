// Dispatch by pull: a warp brings each row from its token's rank to the rows of its expert, through shared memory by bulk copies of at
// most 4096 bytes, and counts it for its block. On the same egress of the peer as that one's combine stores.
#pragma once

#include "moe_plan.cuh"

static __device__ __forceinline__ void pull_in(u32 to, const char *from, u32 bytes, u32 bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(bar)
               : "memory");
}
static __device__ __forceinline__ void put_out(char *to, u32 from, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from), "r"(bytes) : "memory");
  bulk_commit();
}
template <int PENDING>
static __device__ __forceinline__ void bulk_wait_source_but() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}

struct Pull {  // one bulk copy: part of a row
  const char *from;
  char *to;
  u32 bytes, block;
  bool last;  // of its row
};

// One thread of each of the PULLERS warps. Rows are dealt in the order of blocks, which is the order in which they are needed.
static __device__ void pull_rows(const MoePlan &plan, u32 base, u32 puller) {
  const u32 *const source = (const u32 *)plan.row_source;
  const u32 row_bytes = plan.hidden * ELEMENT, parts = (row_bytes + PULL_BYTES - 1) / PULL_BYTES, stride = gridDim.x * PULLERS;
  const u32 buffers = base + PULL_AT + puller * PULL_DEPTH * PULL_BYTES, rows = plan.blocks * TILE;
  u32 sent = 0, received = 0;
  Pull held = {};
  auto finish = [&] {
    const u32 b = received % PULL_DEPTH;
    barrier_wait(pull_barrier(base, puller, b), received / PULL_DEPTH & 1);
    put_out(held.to, buffers + b * PULL_BYTES, held.bytes);
    ++received;
    if (held.last) {
      bulk_wait();
      add_release((u32 *)plan.arrived + held.block);
    }
  };
  for (u32 row = blockIdx.x * PULLERS + puller; row < rows; row += stride) {
    const u32 word = source[row];
    if (word == NO_ROW) continue;
    const u32 owner = word >> 28, token = word & 0xfffffff;
#if XSTAGE_FP8
    ((float *)plan.row_scale)[row] = ((const float *)plan.source_scales[owner])[token];
#endif
    for (u32 part = 0; part < parts; ++part) {
      const u32 at = part * PULL_BYTES, bytes = min(PULL_BYTES, row_bytes - at), b = sent % PULL_DEPTH;
      bulk_wait_source_but<PULL_DEPTH - 2>();  // the copy out of this buffer has read it
      barrier_expect(pull_barrier(base, puller, b), bytes);
      const Pull next = {(const char *)plan.sources[owner] + (u64)token * row_bytes + at, (char *)plan.gathered + (u64)row * row_bytes + at, bytes,
                         row / TILE, part + 1 == parts};
      pull_in(buffers + b * PULL_BYTES, next.from, bytes, pull_barrier(base, puller, b));
      ++sent;
      if (sent > 1) finish();
      held = next;
    }
  }
  if (sent) finish();
}
