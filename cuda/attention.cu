// Attention forward for one rank of a sequence-parallel group: persistent CTAs, one per SM, walk tiles of QUERIES rows of a head in a
// given order. One warp brings Q, K and V by the copy engine; each consumer warpgroup multiplies 64 rows, and its warps store them to the
// rank that owns them (attention_store.cuh) and go on with the next tile.
#include "attention_plan.cuh"
#include "attention_publish.cuh"
#include "attention_softmax.cuh"
#include "attention_store.cuh"
#include "hopper_wgmma.cuh"

// Named barriers, each + warpgroup: whose products are issued next; all of a warpgroup have read its queries.
static constexpr u32 TURN = 1, STAGING = TURN + CONSUMERS;

// One thread. K runs ahead of V by a block, as the consumers need them: the scores of a block come before the output of the one before.
static __device__ void load(const AttentionPlan &plan, u32 base) {
  const Barriers bar = barriers_at(base);
  const u32 *order = (const u32 *)plan.order;
  const u32 blocks = (plan.seq + KEYS - 1) / KEYS;
  Ring k, v;
  u32 q_parity = 0, next = order[min(blockIdx.x, plan.tiles - 1)];
  auto bring = [&](Ring &ring, u32 full, u32 empty, u32 at, const TensorMap *map, u32 block, u32 head) {
    const u32 to = base + at + ring.stage * KV_BYTES;
    barrier_wait(empty + 8 * ring.stage, ring.parity ^ 1);
    barrier_expect(full + 8 * ring.stage, KV_BYTES);
#pragma unroll
    for (u32 h = 0; h < HALVES; ++h) tensor_load(to + h * KEYS * ROW_BYTES, map, full + 8 * ring.stage, 64 * h, block * KEYS, head);
    ring.advance<STAGES>();
  };
  for (u32 i = blockIdx.x; i < plan.tiles; i += gridDim.x) {
    const Tile tile = tile_of(next);
    if (i + gridDim.x < plan.tiles) next = order[i + gridDim.x];
    const u32 head = tile.head / plan.queries_per_key;
    bring(k, bar.k_full, bar.k_empty, K_AT, &plan.k, blocks - 1, head);
    barrier_wait(bar.q_empty, q_parity ^ 1);
    q_parity ^= 1;
    barrier_expect(bar.q_full, Q_BYTES);
#pragma unroll
    for (u32 h = 0; h < HALVES; ++h) tensor_load(base + h * QUERIES * ROW_BYTES, &plan.q, bar.q_full, 64 * h, tile.block * QUERIES, tile.head);
#pragma unroll 1
    for (u32 b = blocks - 1; b > 0; --b) {
      bring(k, bar.k_full, bar.k_empty, K_AT, &plan.k, b - 1, head);
      bring(v, bar.v_full, bar.v_empty, V_AT, &plan.v, b, head);
    }
    bring(v, bar.v_full, bar.v_empty, V_AT, &plan.v, 0, head);
  }
}

// S = Q K^T of this warpgroup's rows.
static __device__ __forceinline__ void scores(float (&s)[KEYS / 2], u32 q, u32 k) {
#pragma unroll
  for (u32 t = 0; t < HEAD_DIM / 16; ++t) {
    const u32 within = 32 * (t & 3);
    Product<KEYS>::shared_shared(s, matrix_descriptor(q + (t / 4) * QUERIES * ROW_BYTES + within), matrix_descriptor(k + (t / 4) * KEYS * ROW_BYTES + within), t != 0);
  }
}

// O += P V.
static __device__ __forceinline__ void outputs(float (&o)[HEAD_DIM / 2], const u32 (&p)[KEYS / 4], u32 v) {
#pragma unroll
  for (u32 t = 0; t < KEYS / 16; ++t)
    Product<HEAD_DIM>::registers_shared(o, p[4 * t], p[4 * t + 1], p[4 * t + 2], p[4 * t + 3], matrix_descriptor(v + t * 16 * ROW_BYTES, KEYS * ROW_BYTES));
}

static __device__ __forceinline__ void pack(u32 (&p)[KEYS / 4], const float (&s)[KEYS / 2]) {
#pragma unroll
  for (u32 j = 0; j < KEYS / 4; ++j) p[j] = pack_bf16(s[2 * j], s[2 * j + 1]);
}

// One consumer warpgroup. While its softmax of a block runs, its product of the block before is in the tensor cores; and the
// warpgroups take turns at issuing, so that one's softmax falls on the other's products.
static __device__ __forceinline__ void consume(const AttentionPlan &plan, u32 base) {
  const Barriers bar = barriers_at(base);
  const u32 *order = (const u32 *)plan.order;
  const u32 blocks = (plan.seq + KEYS - 1) / KEYS, tail = plan.seq - (blocks - 1) * KEYS;
  const u32 group = threadIdx.x / WARPGROUP - 1, warp = threadIdx.x / 32 - 4, lane = threadIdx.x & 31;
  const u32 q = base + group * 64 * ROW_BYTES, staging = base + O_AT + warp * WARP_ROWS * ROW_BYTES;
  const u32 my_turn = TURN + group, next_turn = TURN + (group + 1) % CONSUMERS;
  Ring k, v;
  u32 q_parity = 0, done = 0, next = order[min(blockIdx.x, plan.tiles - 1)];
  if (group == CONSUMERS - 1) named_arrive(TURN, 2 * WARPGROUP);

  for (u32 i = blockIdx.x; i < plan.tiles; i += gridDim.x) {
    const Tile tile = tile_of(next);
    if (i + gridDim.x < plan.tiles) next = order[i + gridDim.x];
#if XSTAGE_STAMPS
    const u64 begin_ns = global_timer_ns();
#endif
    float s[KEYS / 2], o[HEAD_DIM / 2];
    u32 p[KEYS / 4];
    Softmax<KEYS> softmax;
#pragma unroll
    for (u32 j = 0; j < HEAD_DIM / 2; ++j) o[j] = 0.0f;

    barrier_wait(bar.q_full, q_parity);
    q_parity ^= 1;
    barrier_wait(bar.k_full + 8 * k.stage, k.parity);
    products_begin();
    scores(s, q, base + K_AT + k.stage * KV_BYTES);
    products_commit();
    products_wait<0>();
    settle(s);
    if (lane == 0) {
      barrier_arrive(bar.k_empty + 8 * k.stage);
      if (blocks == 1 && !STAGED_OVER_Q) barrier_arrive(bar.q_empty);
    }
    k.advance<STAGES>();
    if (tail != KEYS) mask_columns<KEYS>(s, tail);
    softmax.first(s, plan.scale_log2);
    pack(p, s);

#pragma unroll 1
    for (u32 b = blocks - 1; b > 0; --b) {
      barrier_wait(bar.k_full + 8 * k.stage, k.parity);
      named_sync(my_turn, 2 * WARPGROUP);
      products_begin();
      scores(s, q, base + K_AT + k.stage * KV_BYTES);
      products_commit();
      barrier_wait(bar.v_full + 8 * v.stage, v.parity);
      products_begin();
      outputs(o, p, base + V_AT + v.stage * KV_BYTES);
      products_commit();
      named_arrive(next_turn, 2 * WARPGROUP);
      products_wait<1>();
      settle(s);
      if (lane == 0) {
        barrier_arrive(bar.k_empty + 8 * k.stage);
        if (b == 1 && !STAGED_OVER_Q) barrier_arrive(bar.q_empty);
      }
      k.advance<STAGES>();
      const bool changed = softmax.next(s, plan.scale_log2);
      products_wait<0>();
      settle(o);
      if (lane == 0) barrier_arrive(bar.v_empty + 8 * v.stage);
      v.advance<STAGES>();
      pack(p, s);
      if (changed) {
#pragma unroll
        for (u32 j = 0; j < HEAD_DIM / 2; ++j) o[j] *= softmax.factor[(j / 2) & 1];
      }
    }
    barrier_wait(bar.v_full + 8 * v.stage, v.parity);
    products_begin();
    outputs(o, p, base + V_AT + v.stage * KV_BYTES);
    products_commit();
    const float scale0 = softmax.inverse(0), scale1 = softmax.inverse(1);
    products_wait<0>();
    settle(o);
    if (lane == 0) barrier_arrive(bar.v_empty + 8 * v.stage);
    v.advance<STAGES>();

#if XSTAGE_STAMPS
    const u64 computed_ns = global_timer_ns();
#endif
    stage_is_free(lane, XSTAGE_FLAGS != XSTAGE_FLAGS_NONE);
    if (XSTAGE_FLAGS != XSTAGE_FLAGS_NONE && XSTAGE_STORE == XSTAGE_STORE_BULK) report_stored(base, warp, lane, done);
    if (STAGED_OVER_Q) named_sync(STAGING + group, WARPGROUP);
    stage_rows(staging, lane, o, scale0, scale1);
    store_rows(plan, staging, {plan.head_first + tile.head, tile.block * QUERIES + 64 * group + WARP_ROWS * (warp & 3), lane});
    if (STAGED_OVER_Q) {
      stage_is_free(lane, false);
      if (lane == 0) barrier_arrive(bar.q_empty);
    }
    ++done;
    if (XSTAGE_FLAGS != XSTAGE_FLAGS_NONE && XSTAGE_STORE != XSTAGE_STORE_BULK) report_stored(base, warp, lane, done);
#if XSTAGE_STAMPS
    if ((threadIdx.x & (WARPGROUP - 1)) == 0)
      ((Stamp *)plan.stamps)[(u64)i * CONSUMERS + group] = {begin_ns, computed_ns, global_timer_ns(), sm_id(), i};
#endif
  }
  stage_is_free(lane, true);
  if (XSTAGE_FLAGS != XSTAGE_FLAGS_NONE) report_stored(base, warp, lane, done);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) xstage_attention(const __grid_constant__ AttentionPlan plan) {
  extern __shared__ __align__(1024) char memory[];
  const u32 base = shared_address(memory);
  const Barriers bar = barriers_at(base);
  if (threadIdx.x == 0) {
    if (base & 1023) fault();
    barrier_init(bar.q_full, 1);
    barrier_init(bar.q_empty, CONSUMER_WARPS);
    for (u32 s = 0; s < STAGES; ++s) {
      barrier_init(bar.k_full + 8 * s, 1);
      barrier_init(bar.v_full + 8 * s, 1);
      barrier_init(bar.k_empty + 8 * s, CONSUMER_WARPS);
      barrier_init(bar.v_empty + 8 * s, CONSUMER_WARPS);
    }
    barrier_init_done();
  }
  if (threadIdx.x < CONSUMER_WARPS) asm volatile("st.shared.u32 [%0], 0;" ::"r"(base + STORED_AT + 4 * threadIdx.x) : "memory");
  __syncthreads();
  if (threadIdx.x < WARPGROUP) {
    registers_lower<CONSUMERS == 2 ? 24 : 32>();
    if (threadIdx.x == 0) {
      load(plan, base);
    } else if (XSTAGE_FLAGS != XSTAGE_FLAGS_NONE && threadIdx.x / 32 == 1) {
      publish(plan, base, threadIdx.x & 31, blockIdx.x, gridDim.x);
    } else if (XSTAGE_FLAGS != XSTAGE_FLAGS_NONE && threadIdx.x / 32 == 2 && blockIdx.x == 0) {
      await_flags(plan, threadIdx.x & 31);
    }
  } else {
    registers_raise<CONSUMERS == 2 ? 240 : 160>();
    consume(plan, base);
  }
}
