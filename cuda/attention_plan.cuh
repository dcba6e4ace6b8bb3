// What attention.cu is compiled for and what one launch of it is told.
#pragma once

#include "hopper_tma.cuh"

#ifndef XSTAGE_HEAD_DIM
#define XSTAGE_HEAD_DIM 128
#endif
#ifndef XSTAGE_KEYS
#define XSTAGE_KEYS 128
#endif
#ifndef XSTAGE_CONSUMERS
#define XSTAGE_CONSUMERS 2
#endif
#ifndef XSTAGE_STAGES
#define XSTAGE_STAGES 2
#endif
#ifndef XSTAGE_STORE
#define XSTAGE_STORE 0
#endif
#ifndef XSTAGE_FLAGS
#define XSTAGE_FLAGS 0
#endif
#ifndef XSTAGE_LAZY
#define XSTAGE_LAZY 1
#endif
#ifndef XSTAGE_STAMPS
#define XSTAGE_STAMPS 0
#endif
#define XSTAGE_STORE_16 0    // 16-byte stores, whole rows of a head side by side
#define XSTAGE_STORE_BULK 1  // bulk tensor stores from shared memory
#define XSTAGE_FLAGS_NONE 0
#define XSTAGE_FLAGS_END 1    // one per CTA and owner, after its last tile
#define XSTAGE_FLAGS_SHARD 2  // a count of tiles per owner
#define XSTAGE_FLAGS_TILE 3   // a word for each tile

static constexpr u32 HEAD_DIM = XSTAGE_HEAD_DIM, KEYS = XSTAGE_KEYS, CONSUMERS = XSTAGE_CONSUMERS, STAGES = XSTAGE_STAGES;
static constexpr u32 QUERIES = 64 * CONSUMERS;  // rows of a tile
static constexpr u32 HALVES = HEAD_DIM / 64;    // blocks of 64 columns: 128 bytes, the widest swizzle
static constexpr u32 WARPGROUP = 128;
static constexpr u32 THREADS = WARPGROUP * (CONSUMERS + 1);
static constexpr u32 CONSUMER_WARPS = 4 * CONSUMERS;
static constexpr u32 MAX_OWNERS = 16;

struct AttentionPlan {  // mirrored by PLAN in xstage_bench/kernels/attention/attention.py; the launch's only parameter
  TensorMap q, k, v;
  TensorMap out_map[MAX_OWNERS];
  u64 out[MAX_OWNERS];    // each owner's output: rows of all heads
  u64 flags[MAX_OWNERS];  // this rank's words at each owner
  u64 order, waits, stamps, report, timeout_ns;
  u32 tiles, seq, rows_per_owner, owners, heads_total, head_first, queries_per_key, epoch, wait_count;
  float scale_log2;
};

struct Wait {  // mirrored by WAIT: so many words that each launch raises by so much
  u64 words;
  u32 count, per_launch;
};
struct Stamp {  // mirrored by STAMP: one warpgroup's tile, ns of %globaltimer; the stores lie between the last two
  u64 begin_ns, computed_ns, stored_ns;
  u32 smid, tile;
};
struct Report {  // mirrored by REPORT
  u64 arrived_ns;  // when the last awaited flag was seen
  u32 timed_out, pad;
};

static_assert(sizeof(AttentionPlan) == 2816 && sizeof(Stamp) == 32 && sizeof(Report) == 16 && sizeof(Wait) == 16, "mirrored in Python");

// A tile: `block` counts blocks of QUERIES rows within a head.
struct Tile {
  u32 head, block;
};
static __device__ __forceinline__ Tile tile_of(u32 word) { return {word >> 16, word & 0xffff}; }

// Shared memory. Everything that the copy engine touches starts at a multiple of 1024 bytes, the period of the swizzle.
static constexpr u32 ROW_BYTES = 128;
static constexpr u32 Q_BYTES = QUERIES * HEAD_DIM * 2, KV_BYTES = KEYS * HEAD_DIM * 2;
static constexpr u32 K_AT = Q_BYTES, V_AT = K_AT + STAGES * KV_BYTES, END_OF_V = V_AT + STAGES * KV_BYTES;
// Finished rows are staged beside the inputs where there is room, else over the queries, whose successor then comes later.
static constexpr bool STAGED_OVER_Q = END_OF_V + Q_BYTES + 1024 > 227 * 1024;
static constexpr u32 O_AT = STAGED_OVER_Q ? 0 : END_OF_V;
static constexpr u32 BARRIERS_AT = STAGED_OVER_Q ? END_OF_V : END_OF_V + Q_BYTES;
static constexpr u32 BARRIERS = 2 + 4 * STAGES;
static constexpr u32 STORED_AT = BARRIERS_AT + 8 * BARRIERS;
static constexpr u32 SHARED_BYTES = STORED_AT + 4 * CONSUMER_WARPS;  // attention.py computes the same

struct Barriers {
  u32 q_full, q_empty, k_full, k_empty, v_full, v_empty;  // the last four: of stage 0, the others follow
};
static __device__ __forceinline__ Barriers barriers_at(u32 base) {
  const u32 b = base + BARRIERS_AT;
  return {b, b + 8, b + 16, b + 16 + 8 * STAGES, b + 16 + 16 * STAGES, b + 16 + 24 * STAGES};
}
