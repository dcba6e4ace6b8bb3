// Copies of a large buffer to a peer by SMs, as bandwidth testers do them (docs/method.md): the yardstick beside which R stands.
#include "stamps.cuh"

static constexpr u32 DEPTH = 12;  // loads of one thread in flight, then as many stores

// One CTA per SM. Successive words of a thread lie a stride of the whole grid apart, so that a warp's accesses are whole lines; the copy is
// repeated in one launch. `words` are 16-byte words of each thread.
extern "C" __global__ void __launch_bounds__(512, 1) xstage_copy(uint4 *to, const uint4 *from, u64 words, u32 loops) {
  const u64 stride = (u64)gridDim.x * blockDim.x, first = (u64)blockIdx.x * blockDim.x + threadIdx.x;
#pragma unroll 1
  for (u32 n = 0; n < loops; ++n) {
    u64 at = first, left = words;
#pragma unroll 1
    for (; left >= DEPTH; left -= DEPTH) {
      uint4 held[DEPTH];
#pragma unroll
      for (u32 i = 0; i < DEPTH; ++i) held[i] = from[at + i * stride];
#pragma unroll
      for (u32 i = 0; i < DEPTH; ++i) to[at + i * stride] = held[i];
      at += DEPTH * stride;
    }
#pragma unroll 1
    for (; left; --left, at += stride) to[at] = from[at];
  }
}

// Holds the stream until everything that is to be timed has been enqueued, or until the time-out.
extern "C" __global__ void xstage_hold(const volatile u32 *go, u64 timeout_ns) {
  const u64 give_up = global_timer_ns() + timeout_ns;
  while (!*go && global_timer_ns() < give_up) __nanosleep(200);
}

// Words that name their place, so that a copy that went elsewhere is seen.
extern "C" __global__ void xstage_number(uint4 *memory, u64 count, u32 salt) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x)
    memory[i] = make_uint4((u32)i, (u32)(i >> 32), (u32)i * 0x9E3779B1u, salt);
}

// Runs on the destination, over its own memory.
extern "C" __global__ void xstage_numbered(const uint4 *memory, u64 count, u32 salt, u64 *wrong) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
    const uint4 have = memory[i];
    if (have.x != (u32)i || have.y != (u32)(i >> 32) || have.z != (u32)i * 0x9E3779B1u || have.w != salt) atomicAdd(wrong, 1ull);
  }
}
