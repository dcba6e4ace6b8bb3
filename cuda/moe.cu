// One expert-parallel MoE layer of one rank in one kernel: dispatch, Linear-1, SwiGLU, Linear-2, combine.
//
// Persistent CTAs, one per SM, each with a list of tasks made on the host: tiles of Linear-1 and Linear-2 in any order that cannot
// dead-lock. One warp brings operands by the copy engine; two warpgroups take the tasks in turn, one's epilogue beside the other's products.
// The order of the lists is the experiment; nothing else in here depends on it.
#include "hopper_wgmma_e4m3.cuh"
#include "moe_combine.cuh"
#include "moe_dispatch.cuh"
#include "moe_epilogue.cuh"

struct Tasks {
  const u32 *words;
  u32 count;
};
static __device__ __forceinline__ Tasks my_tasks(const MoePlan &plan) {
  const u32 *const first = (const u32 *)plan.first + blockIdx.x;
  return {(const u32 *)plan.tasks + first[0], first[1] - first[0]};
}
static __device__ __forceinline__ u32 steps_of(const MoePlan &plan, u32 second) { return (second ? plan.inter : plan.hidden) / STEP; }

// The operands of one task, by one thread. `brought` is called after each stage.
template <class Brought>
static __device__ __forceinline__ void bring(const MoePlan &plan, u32 base, Ring &ring, const Task &task, u32 steps, u32 expert, Brought brought) {
  asm volatile("fence.proxy.async.global;" ::: "memory");  // the copy engine reads what others have stored by ordinary means
  const TensorMap *const a = task.second ? &plan.act : &plan.rows, *const b = task.second ? &plan.w2 : &plan.w1;
#pragma unroll 1
  for (u32 k = 0; k < steps; ++k) {
    const u32 to = base + ring.stage * STAGE_BYTES, full = full_barrier(base, ring.stage);
    barrier_wait(empty_barrier(base, ring.stage), ring.parity ^ 1);
    barrier_expect(full, STAGE_BYTES);
    tensor_load(to, a, full, k * STEP, task.block * TILE, 0);
    tensor_load(to + OPERAND_BYTES, b, full, k * STEP, task.column * TILE, expert);
    ring.advance<STAGES>();
    brought(k);
  }
}

// Until a task's rows are there: activations of all Linear-1 tiles of its block, or what dispatch brings.
static __device__ __forceinline__ void await_rows(const MoePlan &plan, const Task &task) {
  if (task.second) await_count((const u32 *)plan.ready + task.block, ready_count(plan), plan.timeout_ns);
#if XSTAGE_DISPATCH
  else await_count((const u32 *)plan.arrived + task.block, ((const u32 *)plan.block_rows)[task.block], plan.timeout_ns);
#endif
}

#if !XSTAGE_DISPATCH
// One thread that looks ahead whether tasks' rows are there. A look is a read from memory, which waits for the drain of what the SM has stored; the
// thread that loads would wait for it before it could ask for the operands, and for those as long again.
static __device__ void scout(const MoePlan &plan, u32 base) {
  const Tasks tasks = my_tasks(plan);
  for (u32 i = 0; i < tasks.count; ++i) {
    await_rows(plan, task_of(tasks.words[i]));
    asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(base + SCOUTED_AT), "r"(i + 1) : "memory");
  }
}
static __device__ __forceinline__ u32 scouted(u32 base) {
  u32 tasks;
  asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(tasks) : "r"(base + SCOUTED_AT) : "memory");
  return tasks;
}
static __device__ __forceinline__ void await_scout(const MoePlan &plan, u32 base, u32 tasks) {
  if (scouted(base) >= tasks) return;
  const u64 give_up = global_timer_ns() + plan.timeout_ns;
  while (scouted(base) < tasks)
    if (global_timer_ns() > give_up) fault();
}
#endif

// One thread: the operands of every task, in order.
static __device__ void load(const MoePlan &plan, u32 base) {
  Ring ring;
  const Tasks tasks = my_tasks(plan);
  const u32 *const experts = (const u32 *)plan.block_expert;
  auto word_at = [&](u32 i) { return i < tasks.count ? tasks.words[i] : 0; };
  u32 word = word_at(0), next = word_at(1), expert = experts[task_of(word).block];
  for (u32 i = 0; i < tasks.count; ++i) {
    const Task task = task_of(word);
#if XSTAGE_DISPATCH
    await_rows(plan, task);
#else
    if (task.second) await_scout(plan, base, i + 1);
#endif
    u32 next_expert, after;
    // Behind the task's first operands, and not waited for before its last: a fence in between would wait.
    bring(plan, base, ring, task, steps_of(plan, task.second), expert, [&](u32 k) {
      if (k == 0) next_expert = experts[task_of(next).block], after = word_at(i + 2);
    });
    word = next, next = after, expert = next_expert;
  }
}

#if XSTAGE_FP8
using ProductOf = ProductE4m3<128>;
#else
using ProductOf = Product<128>;
#endif

// The same value in all threads, and the compiler knows it: descriptors are then made by the uniform unit, and products are issued one behind
// another. Without, a stage's 16 descriptors took longer than its products.
static __device__ __forceinline__ u32 uniform(u32 value) { return __shfl_sync(0xffffffffu, value, 0); }

// One stage: 64 rows twice, 128 columns.
static __device__ __forceinline__ void multiply(float (&upper)[HALF], float (&lower)[HALF], u64 stage, bool accumulate) {
#pragma unroll
  for (u32 t = 0; t < 4; ++t) {
    const u64 b = stage + (OPERAND_BYTES + 32 * t) / 16;
    ProductOf::shared_shared(upper, stage + 2 * t, b, accumulate || t != 0);
    ProductOf::shared_shared(lower, stage + (HALF * ROW_BYTES + 32 * t) / 16, b, accumulate || t != 0);
  }
}

// The CTA's list, for the two warpgroups. Four words are under way or here: a read from memory waits until nearly all that its SM has stored has drained,
// which can take as long as a tile (docs/own-kernel.md), so nothing is asked for when it is needed.
struct Turns {
  const Tasks tasks;
  u32 word, coming[4];  // of the task, and of those behind it

  __device__ __forceinline__ explicit Turns(const MoePlan &plan) : tasks(my_tasks(plan)) {
#pragma unroll
    for (u32 n = 0; n < 4; ++n) coming[n] = at(n);
  }
  __device__ __forceinline__ u32 at(u32 i) const { return i < tasks.count ? tasks.words[i] : 0; }
  __device__ __forceinline__ bool next(u32 i) {
    word = coming[0], coming[0] = coming[1], coming[1] = coming[2], coming[2] = coming[3], coming[3] = at(i + 4);
    return i < tasks.count;
  }
};

static __device__ __forceinline__ void consume(const MoePlan &plan, u32 base) {
  Turns turns(plan);
  const u32 group = threadIdx.x / WARPGROUP - 1, warp = threadIdx.x / 32 & 3, lane = threadIdx.x & 31;
  const u32 staging = base + STAGING_AT + (group * GROUP_WARPS + warp) * STAGED_BYTES;
  const u64 first_stage = matrix_descriptor(uniform(base));
  const u32 *const experts = (const u32 *)plan.block_expert;
  u32 at = 0;  // stages consumed by both groups
  const u32 scales_at = base + SCALES_AT + 2 * (group * GROUP_WARPS + warp) * SCALES_BYTES;
  u32 own = 0;  // tasks of this group before this one
  // Of this group's next task, and the expert of the one behind it.
  const Task ahead = task_of(turns.at(group));
  Facts facts_ahead = facts_of(plan, ahead, experts[ahead.block], warp, lane);
  u32 expert_ahead = experts[task_of(turns.at(group + 2)).block];
  keep_columns(facts_ahead, scales_at, lane);
  for (u32 i = 0; turns.next(i); ++i) {
    const Task task = task_of(turns.word);
    const u32 steps = uniform(steps_of(plan, task.second));
    if ((i & 1) != group) {
      at += steps;
      continue;
    }
#if XSTAGE_STAMPS
    Stamp stamp;
    stamp.turn_ns = global_timer_ns();
#endif
    const u32 scales_here = scales_at + (own & 1) * SCALES_BYTES;
    ++own;
    Facts facts = facts_ahead;
    facts_ahead = facts_of(plan, task_of(turns.coming[1]), expert_ahead, warp, lane);
    if (i > 0) named_sync(TURN + group, 2 * WARPGROUP);
    float upper[HALF], lower[HALF];
    u32 stage = at % STAGES, parity = at / STAGES & 1, before = stage;
#if XSTAGE_STAMPS
    barrier_wait(full_barrier(base, stage), parity);
    stamp.begin_ns = global_timer_ns();
#endif
#pragma unroll 1
    for (u32 k = 0; k < steps; ++k) {
      const u64 operands = first_stage + uniform(stage) * (STAGE_BYTES / 16);
      barrier_wait(full_barrier(base, stage), parity);
      products_begin();
      multiply(upper, lower, operands, k != 0);
      products_commit();
      products_wait<1>();
      if (k > 0 && lane == 0) barrier_arrive(empty_barrier(base, before));
      before = stage;
      if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    at += steps;
    if (i + 1 < turns.tasks.count) named_arrive(TURN + (group ^ 1), 2 * WARPGROUP);
    products_wait<0>();
    settle(upper);
    settle(lower);
    if (lane == 0) barrier_arrive(empty_barrier(base, before));
#if XSTAGE_STAMPS
    stamp.computed_ns = global_timer_ns();
#endif
    expert_ahead = experts[task_of(turns.coming[3]).block];
    keep_columns(facts_ahead, scales_at + (own & 1) * SCALES_BYTES, lane);
    late_facts(facts, plan, task, scales_here, warp, lane);
    const Scales scales(facts);
    if (task.second) {
      combine(plan, staging, facts, scales, upper, task, 0, lane);
      combine(plan, staging, facts, scales, lower, task, 1, lane);
    } else {
      swiglu(plan, staging, facts, scales, upper, task, 0, warp, lane);
      swiglu(plan, staging + ACT_STAGED_BYTES, facts, scales, lower, task, 1, warp, lane);
    }
#if XSTAGE_STAMPS
    stamp.stored_ns = global_timer_ns();
#endif
    named_sync(GROUP_BARRIER + group, WARPGROUP);
    if ((threadIdx.x & (WARPGROUP - 1)) == 0) asm volatile("st.release.cta.shared::cta.u32 [%0], %1;" ::"r"(base + STORED_AT + 4 * group), "r"(i / 2 + 1) : "memory");
#if XSTAGE_STAMPS
    if ((threadIdx.x & (WARPGROUP - 1)) == 0) {
      stamp.published_ns = global_timer_ns();
      stamp.smid = sm_id();
      stamp.word = turns.word;
      ((Stamp *)plan.stamps)[turns.tasks.words - (const u32 *)plan.tasks + i] = stamp;
    }
#endif
  }
}

// One thread that computes and stores nothing: it alone waits for the remote backlog that a release has to wait for.
//
// What another CTA's copy engine may read happens before its read by this chain: a warpgroup's stores of the tile; its barrier; its release at cta scope of
// how many of its tasks are stored; this thread's acquire of that; its release at gpu scope, and the count; an acquire of the count (await_count) by the
// thread that loads, or that scouts for it; that thread's fence between the proxies (bring).
static __device__ void publish_behind(const MoePlan &plan, u32 base) {
  const Tasks tasks = my_tasks(plan);
  const u64 give_up = global_timer_ns() + plan.timeout_ns;
  for (u32 i = 0; i < tasks.count;) {
    u32 even, odd;
    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(even) : "r"(base + STORED_AT) : "memory");
    asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(odd) : "r"(base + STORED_AT + 4) : "memory");
    u32 until = i;
    bool any = false;
    while (until < tasks.count && (until & 1 ? odd : even) > until / 2) any |= !task_of(tasks.words[until++]).second;
    if (until == i) {
      if (global_timer_ns() > give_up) fault();
      __nanosleep(100);
      continue;
    }
    if (!any) {
      i = until;
      continue;
    }
    asm volatile("fence.acq_rel.gpu;" ::: "memory");  // in this thread, between what it has acquired and the counts that it adds to
    for (; i < until; ++i) {
      const Task task = task_of(tasks.words[i]);
      if (!task.second) add_relaxed((u32 *)plan.ready + task.block);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) xstage_moe(const __grid_constant__ MoePlan plan) {
  extern __shared__ __align__(1024) char memory[];
  u32 base;
  asm volatile("mov.u32 %0, %1;" : "=r"(base) : "r"(shared_address(memory)));  // once: the compiler would find the address anew at every use
  if (threadIdx.x == 0) {
    if (base & 1023) fault();
    for (u32 s = 0; s < STAGES; ++s) {
      barrier_init(full_barrier(base, s), 1);
      barrier_init(empty_barrier(base, s), GROUP_WARPS);
    }
    for (u32 p = 0; p < PULLERS; ++p)
      for (u32 b = 0; b < PULL_DEPTH; ++b) barrier_init(pull_barrier(base, p, b), 1);
    for (u32 g = 0; g < GROUPS; ++g) asm volatile("st.shared.u32 [%0], 0;" ::"r"(base + STORED_AT + 4 * g) : "memory");
    asm volatile("st.shared.u32 [%0], 0;" ::"r"(base + SCOUTED_AT) : "memory");
    barrier_init_done();
    begin_together(plan);
    Report *const report = (Report *)plan.report + blockIdx.x;
    report->begin_ns = global_timer_ns();
    report->begin_clock = sm_clock();
  }
  __syncthreads();
  if (threadIdx.x < WARPGROUP) {
    registers_lower<40>();
    if (threadIdx.x == 0) load(plan, base);
#if XSTAGE_DISPATCH
    else if (threadIdx.x / 32 <= PULLERS && (threadIdx.x & 31) == 0) pull_rows(plan, base, threadIdx.x / 32 - 1);
#else
    else if (threadIdx.x == 32) scout(plan, base);
#endif
    else if (threadIdx.x == 96) publish_behind(plan, base);
  } else {
    registers_raise<232>();
    Report *const report = (Report *)plan.report + blockIdx.x;
    const bool reports = threadIdx.x == WARPGROUP;
    consume(plan, base);
    if ((threadIdx.x & (WARPGROUP - 1)) == 0) report->stored_ns[threadIdx.x / WARPGROUP - 1] = global_timer_ns();
    meet_ranks(plan, CONSUMER_BARRIER, GROUPS * WARPGROUP);
    if (reports) {
      report->arrived_ns = global_timer_ns();
      report->arrived_clock = sm_clock();
    }
    if (plan.reduce) reduce_tokens(plan, threadIdx.x - WARPGROUP, GROUPS * WARPGROUP);
    if (reports) report->end_ns = global_timer_ns();
  }
}
