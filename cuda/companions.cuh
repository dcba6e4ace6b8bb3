// What else keeps an SM or a port busy while others store: remote loads, bulk loads, local copies, tensor-core work.
// Each runs until a set time and counts what it moved in equal slots of time, so that its rate is known while the stores were under way.
#pragma once

#include "stamps.cuh"

static constexpr u32 SLOTS = 64;
static constexpr u32 BULK_BYTES = 4096, BULK_DEPTH = 8;  // in flight per SM: 32 KB, 16 GB/s at a round trip of 2 us
static constexpr u32 UNIT_BYTES = 4096;  // of one count: eight warp-loads, or one bulk operation

struct Slots {
  u32 count[SLOTS];
};

// Closes every slot of time that is over; false when the last one is.
static __device__ __forceinline__ bool tick(Slots &slots, u32 &slot, u32 count, u64 zero, u32 slot_ns, bool writer) {
  const u64 now = global_timer_ns();
  while (slot < SLOTS && now >= zero + (u64)(slot + 1) * slot_ns) {
    if (writer) slots.count[slot] = count;
    ++slot;
  }
  return slot < SLOTS;
}

// 16 bytes per lane, eight warp-loads in flight per warp. volatile: no L1 line may answer for the peer's memory.
static __device__ void pull(const char *base, u64 bytes, u64 zero, u32 slot_ns, u32 lane, Slots &slots) {
  u32 count = 0, slot = 0;
  u64 at = 0;
  while (tick(slots, slot, count, zero, slot_ns, lane == 0)) {
    const char *from = base + at + lane * 16;
    uint4 v[8];
#pragma unroll
    for (u32 i = 0; i < 8; ++i)
      asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(v[i].x), "=r"(v[i].y), "=r"(v[i].z), "=r"(v[i].w)
                   : "l"(from + i * 512)
                   : "memory");
    u32 used = 0;
#pragma unroll
    for (u32 i = 0; i < 8; ++i) used |= v[i].x ^ v[i].w;
    count += used == 0x5bd1e995u ? 2 : 1;  // the loads have arrived before they count
    at = at + UNIT_BYTES < bytes ? at + UNIT_BYTES : 0;
  }
}

// Reads the first half of its slice, writes the second: traffic of the GPU's own L2 and HBM.
static __device__ void copy(char *base, u64 bytes, u64 zero, u32 slot_ns, u32 lane, Slots &slots) {
  u32 count = 0, slot = 0;
  u64 at = 0;
  const u64 half = bytes / 2;
  while (tick(slots, slot, count, zero, slot_ns, lane == 0)) {
    char *from = base + at + lane * 16;
    uint4 v[8];
#pragma unroll
    for (u32 i = 0; i < 8; ++i) v[i] = __ldcg((const uint4 *)(from + i * 512));
#pragma unroll
    for (u32 i = 0; i < 8; ++i) __stcg((uint4 *)(from + half + i * 512), v[i]);
    ++count;
    at = at + UNIT_BYTES < half ? at + UNIT_BYTES : 0;
  }
}

#if __CUDA_ARCH__ >= 900
// Bulk loads into a ring in shared memory, one thread: BULK_DEPTH operations in flight.
static __device__ void pull_bulk(const char *base, u64 bytes, u64 zero, u32 slot_ns, u64 timeout_ns, u32 lane, char *ring, u64 *barriers, Slots &slots) {
  if (lane != 0) return;
  const u32 ring_at = (u32)__cvta_generic_to_shared(ring), barrier_at = (u32)__cvta_generic_to_shared(barriers);
  for (u32 i = 0; i < BULK_DEPTH; ++i) asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier_at + i * 8) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  u32 count = 0, slot = 0, issued = 0;
  u64 at = 0;
  bool open = true;
  while (open || count < issued) {
    open = open && tick(slots, slot, count, zero, slot_ns, true);
    if (open && issued - count < BULK_DEPTH) {
      const u32 i = issued % BULK_DEPTH;
      asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier_at + i * 8), "r"(BULK_BYTES) : "memory");
      asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(ring_at + i * BULK_BYTES),
                   "l"(base + at), "r"(BULK_BYTES), "r"(barrier_at + i * 8)
                   : "memory");
      at = at + BULK_BYTES < bytes ? at + BULK_BYTES : 0;
      ++issued;
      continue;
    }
    const u32 i = count % BULK_DEPTH, parity = count / BULK_DEPTH & 1;
    u32 done = 0;
    const u64 give_up = global_timer_ns() + timeout_ns;
    while (!done && global_timer_ns() < give_up)
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(barrier_at + i * 8), "r"(parity) : "memory");
    ++count;
  }
  for (u32 i = 0; i < BULK_DEPTH; ++i) asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(barrier_at + i * 8) : "memory");
}
#endif

// Tensor-core work until a time of the SM clock: eight independent chains of mma m16n8k16 (bf16 in, f32 out); returns how many were issued.
// The sums decide something that the compiler cannot know, or it would leave the work out.
static __device__ __forceinline__ u32 multiply_until(u64 until, u32 lane) {
  float acc[8][4] = {};
  const u32 a = 0x3f803f80u ^ lane, b = 0x3f803f80u;
  u32 count = 0;
  while (sm_clock() < until) {
#pragma unroll
    for (u32 i = 0; i < 8; ++i)
      asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %4, %4, %4}, {%5, %5}, {%0, %1, %2, %3};"
                   : "+f"(acc[i][0]), "+f"(acc[i][1]), "+f"(acc[i][2]), "+f"(acc[i][3])
                   : "r"(a), "r"(b));
    count += 8;
  }
  float sum = 0.0f;
#pragma unroll
  for (u32 i = 0; i < 8; ++i) sum += acc[i][0] + acc[i][1] + acc[i][2] + acc[i][3];
  return sum == -1.0f ? 0 : count;
}
