// What moe.cu is compiled for and what one launch of it is told.
#pragma once

#include "hopper_tma.cuh"

#ifndef XSTAGE_STAGES
#define XSTAGE_STAGES 5
#endif
#ifndef XSTAGE_FP8
#define XSTAGE_FP8 0
#endif
#ifndef XSTAGE_COMBINE
#define XSTAGE_COMBINE 1
#endif
#ifndef XSTAGE_DISPATCH
#define XSTAGE_DISPATCH 0
#endif
#ifndef XSTAGE_STAMPS
#define XSTAGE_STAMPS 0
#endif
#define XSTAGE_COMBINE_NONE 0  // nothing is stored: the time that stores are judged against
#define XSTAGE_COMBINE_BF16 1
#define XSTAGE_COMBINE_F32 2   // twice the bytes: drain over compute as on a GPU with a slower link
#define XSTAGE_COMBINE_FP8 3   // half the bytes: e4m3 with a scale for the whole layer, each 16 columns in a thread's order

static constexpr u32 WARPGROUP = 128, GROUPS = 2, THREADS = WARPGROUP * (GROUPS + 1), GROUP_WARPS = 4;
static constexpr u32 TILE = 128, HALF = 64;          // a tile is 128 rows by 128 columns; one product has 64 rows
static constexpr u32 ROW_BYTES = 128;                // of a stage: the widest swizzle
static constexpr u32 ELEMENT = XSTAGE_FP8 ? 1 : 2, STEP = ROW_BYTES / ELEMENT;  // summed elements of one stage
static constexpr u32 OPERAND_BYTES = TILE * ROW_BYTES, STAGE_BYTES = 2 * OPERAND_BYTES, STAGES = XSTAGE_STAGES;
static constexpr u32 ACT_COLUMNS = TILE / 2;         // gate and up are interleaved, 8 columns of each
static constexpr u32 MAX_RANKS = 8;
static constexpr u32 NO_ROW = 0xffffffffu;           // padding, or a masked slot
static constexpr u32 TURN = 1, GROUP_BARRIER = 3, CONSUMER_BARRIER = 5;  // named barriers; the first two: one for each group
static constexpr u32 PULLERS = 2, PULL_DEPTH = 2, PULL_BYTES = 4096;

struct MoePlan {  // mirrored by PLAN in xstage_bench/kernels/moe/build.py; the launch's only parameter
  TensorMap rows, w1, act, w2;
  u64 tasks, first;                 // words of all CTAs, and where each CTA's begin
  u64 block_expert, block_rows;     // of each block of 128 rows
  u64 ready, arrived;               // counts for each block, zero at the start: Linear-1 tiles published, rows pulled
  u64 row_slot, row_source;         // owner << 28 | slot, and owner << 28 | token, of each row
  u64 row_scale, act_scale, w1_scale, w2_scale;  // float32, FP8 only
  u64 gathered, activations;        // what `rows` and `act` describe
  u64 sources[MAX_RANKS], source_scales[MAX_RANKS];
  u64 slots[MAX_RANKS];
  u64 finished[MAX_RANKS];          // each rank's count of CTAs that have stored everything
  u64 started[MAX_RANKS];           // each rank's count of ranks that have begun
  u64 own_slots, own_finished, own_started;  // this rank's, to be reduced and waited for
  u64 weights, slot_of, out;        // of each (token, k) of this rank's own tokens: its weight and the number of its slot; the layer's result
  u64 stamps, report, timeout_ns;
  u32 hidden, inter, blocks, ranks, epoch, tokens, top_k, reduce;
  float result_scale, result_inverse;  // of e4m3 result rows: what a code is multiplied by, and a result before it is rounded
};

struct Stamp {  // mirrored by STAMP: one task, ns of %globaltimer
  u64 turn_ns, begin_ns, computed_ns, stored_ns, published_ns;
  u32 smid, word;
};
struct Report {  // mirrored by REPORT; stored: by each warpgroup, since a clock behind a barrier may be read before the barrier is passed
  u64 begin_ns, begin_clock, stored_ns[GROUPS], arrived_ns, arrived_clock, end_ns;
};

// A task: Linear-1 or Linear-2, block of rows, tile of columns.
struct Task {
  u32 second, block, column;
};
static __device__ __forceinline__ Task task_of(u32 word) { return {word >> 31, word >> 12 & 0x7ffff, word & 0xfff}; }

// Shared memory; what the copy engine touches starts at multiples of 1024 bytes.
static constexpr u32 SEGMENT_BYTES = XSTAGE_COMBINE == XSTAGE_COMBINE_FP8 ? 128 : 256;  // of a row that leaves at once
static constexpr u32 STAGED_BYTES = 4096;  // of a warp; whole periods of the swizzle
static constexpr u32 ACT_STAGED_BYTES = 16 * ROW_BYTES;  // one half of the rows' activations; the other one lies behind it
static constexpr u32 STAGING_AT = STAGES * STAGE_BYTES;
static constexpr u32 PULL_AT = STAGING_AT + GROUPS * GROUP_WARPS * STAGED_BYTES;
static constexpr u32 SCALES_BYTES = XSTAGE_FP8 ? 4 * TILE : 0;  // a tile's column scales; a warp has two, for its tile and the next
static constexpr u32 SCALES_AT = PULL_AT + (XSTAGE_DISPATCH ? PULLERS * PULL_DEPTH * PULL_BYTES : 0);
static constexpr u32 BARRIERS_AT = SCALES_AT + 2 * GROUPS * GROUP_WARPS * SCALES_BYTES;
static constexpr u32 BARRIERS = 2 * STAGES + PULLERS * PULL_DEPTH;
static constexpr u32 STORED_AT = BARRIERS_AT + 8 * BARRIERS;
static constexpr u32 SCOUTED_AT = STORED_AT + 4 * GROUPS;  // tasks whose rows are known to be there
static constexpr u32 SHARED_BYTES = SCOUTED_AT + 8;
#ifdef XSTAGE_PLAN_BYTES
static_assert(sizeof(MoePlan) == XSTAGE_PLAN_BYTES && sizeof(Stamp) == XSTAGE_STAMP_BYTES && sizeof(Report) == XSTAGE_REPORT_BYTES && SHARED_BYTES == XSTAGE_SHARED_BYTES, "build.py differs");
#endif

static __device__ __forceinline__ u32 full_barrier(u32 base, u32 stage) { return base + BARRIERS_AT + 8 * stage; }
static __device__ __forceinline__ u32 empty_barrier(u32 base, u32 stage) { return base + BARRIERS_AT + 8 * (STAGES + stage); }
static __device__ __forceinline__ u32 pull_barrier(u32 base, u32 puller, u32 buffer) {
  return base + BARRIERS_AT + 8 * (2 * STAGES + puller * PULL_DEPTH + buffer);
}

static __device__ __forceinline__ u32 load_acquire(const u32 *p) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
static __device__ __forceinline__ void add_release(u32 *p) { asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory"); }
static __device__ __forceinline__ void add_relaxed(u32 *p) { asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(p) : "memory"); }

// What a block's count reaches when all its Linear-1 tiles are published.
static __device__ __forceinline__ u32 ready_count(const MoePlan &plan) { return 2 * plan.inter / TILE; }

// Until a count has reached a value. The host has proved that the lists cannot wait for each other; a bug must not hang the node.
static __device__ __forceinline__ void await_count(const u32 *count, u32 at_least, u64 timeout_ns) {
  if ((int)(load_acquire(count) - at_least) >= 0) return;
  const u64 give_up = global_timer_ns() + timeout_ns;
  while ((int)(load_acquire(count) - at_least) < 0) {
    if (global_timer_ns() > give_up) fault();
    __nanosleep(40);
  }
}
