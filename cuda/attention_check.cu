// What attention.cu is judged by: inputs from a counter-based generator, the same rows computed in float32 by plain arithmetic, and a
// census of what was never written.
#include "stamps.cuh"

static constexpr u32 POISON = 0xffff;  // a bf16 that no result can be: memory is set to bytes of 0xff

struct CheckPlan {  // mirrored by CHECK_PLAN in xstage_bench/kernels/attention/check.py
  u64 q, k, v, out[16], sums;
  u32 seq, heads, keys_heads, rows_per_owner, heads_total, head_first, row_first, row_step;
  float scale;
  u32 pad;
};
struct CheckSums {  // mirrored by CHECK_SUMS
  double error, reference;
  u64 unwritten;
  float worst;
  u32 pad;
};

static __device__ __forceinline__ float from_bf16(u32 half) { return __uint_as_float(half << 16); }

static __device__ __forceinline__ u32 mix(u32 x) {
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return x ^ x >> 16;
}

// Normal deviates, two at a time (Box and Muller), rounded to bf16.
extern "C" __global__ void xstage_attention_fill(u32 *pairs, u64 count, u32 seed) {
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
    const u32 a = mix((u32)i * 2 + seed * 0x9E3779B9u), b = mix(a + (u32)(i >> 32) + 0x85ebca6bu);
    const float radius = sqrtf(-2.0f * logf(((a >> 8) + 1) * (1.0f / 16777217.0f))), angle = 6.2831853f * (b >> 8) * (1.0f / 16777216.0f);
    u32 pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(radius * sinf(angle)), "f"(radius * cosf(angle)));
    pairs[i] = pair;
  }
}

// How many of `count` 16-bit words are still poison.
extern "C" __global__ void xstage_attention_census(const unsigned short *words, u64 count, u64 *unwritten) {
  u64 found = 0;
  for (u64 i = blockIdx.x * (u64)blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) found += words[i] == POISON;
  for (u32 d = 16; d; d /= 2) found += __shfl_xor_sync(0xffffffffu, found, d);
  if ((threadIdx.x & 31) == 0 && found) atomicAdd((unsigned long long *)unwritten, found);
}

// One CTA of eight warps computes one row of one head: a warp takes every eighth key, a lane HEAD_DIM / 32 columns.
template <u32 HEAD_DIM>
static __device__ void check_row(const CheckPlan &plan) {
  constexpr u32 MINE = HEAD_DIM / 32, WARPS = 8;
  __shared__ float shared_out[WARPS][HEAD_DIM], shared_max[WARPS], shared_sum[WARPS];
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x & 31, head = blockIdx.y, row = plan.row_first + blockIdx.x * plan.row_step;
  const u32 key_head = head / (plan.heads / plan.keys_heads);
  typedef unsigned short u16;
  const u16 *q = (const u16 *)plan.q + ((u64)row * plan.heads + head) * HEAD_DIM + lane * MINE;
  float mine[MINE], o[MINE], highest = -__int_as_float(0x7f800000), sum = 0.0f;
  for (u32 c = 0; c < MINE; ++c) mine[c] = from_bf16(q[c]), o[c] = 0.0f;
  for (u32 key = warp; key < plan.seq; key += WARPS) {
    const u64 at = ((u64)key * plan.keys_heads + key_head) * HEAD_DIM + lane * MINE;
    float s = 0.0f;
    for (u32 c = 0; c < MINE; ++c) s = fmaf(mine[c], from_bf16(((const u16 *)plan.k)[at + c]), s);
    for (u32 d = 16; d; d /= 2) s += __shfl_xor_sync(0xffffffffu, s, d);
    s *= plan.scale;
    const float higher = fmaxf(highest, s), keep = expf(highest - higher), p = expf(s - higher);
    highest = higher;
    sum = fmaf(sum, keep, p);
    for (u32 c = 0; c < MINE; ++c) o[c] = fmaf(o[c], keep, p * from_bf16(((const u16 *)plan.v)[at + c]));
  }
  for (u32 c = 0; c < MINE; ++c) shared_out[warp][lane * MINE + c] = o[c];
  if (lane == 0) shared_max[warp] = highest, shared_sum[warp] = sum;
  __syncthreads();
  if (warp) return;
  float all = -__int_as_float(0x7f800000), total = 0.0f;
  for (u32 w = 0; w < WARPS; ++w) all = fmaxf(all, shared_max[w]);
  for (u32 w = 0; w < WARPS; ++w) total += shared_sum[w] * expf(shared_max[w] - all);
  const u32 owner = row / plan.rows_per_owner;
  const u16 *out = (const u16 *)plan.out[owner] + ((u64)(row - owner * plan.rows_per_owner) * plan.heads_total + plan.head_first + head) * HEAD_DIM;
  double error = 0.0, reference = 0.0;
  float worst = 0.0f;
  u64 unwritten = 0;
  for (u32 column = lane; column < HEAD_DIM; column += 32) {
    float r = 0.0f;
    for (u32 w = 0; w < WARPS; ++w)
      if (shared_sum[w] > 0.0f) r += shared_out[w][column] * expf(shared_max[w] - all);
    r /= total;
    const u16 found = out[column];
    unwritten += found == POISON;
    const float off = fabsf(from_bf16(found) - r);
    error += (double)off * off;
    reference += (double)r * r;
    worst = fmaxf(worst, off);
  }
  for (u32 d = 16; d; d /= 2) {
    error += __shfl_xor_sync(0xffffffffu, error, d);
    reference += __shfl_xor_sync(0xffffffffu, reference, d);
    unwritten += __shfl_xor_sync(0xffffffffu, unwritten, d);
    worst = fmaxf(worst, __shfl_xor_sync(0xffffffffu, worst, d));
  }
  if (lane == 0) {
    CheckSums *sums = (CheckSums *)plan.sums;
    atomicAdd(&sums->error, error);
    atomicAdd(&sums->reference, reference);
    atomicAdd((unsigned long long *)&sums->unwritten, unwritten);
    atomicMax((int *)&sums->worst, __float_as_int(worst));
  }
}

extern "C" __global__ void xstage_attention_check_64(const CheckPlan plan) { check_row<64>(plan); }
extern "C" __global__ void xstage_attention_check_128(const CheckPlan plan) { check_row<128>(plan); }
