// Producers that ask the pacer (xstage_pacer.cuh): its answer beside what each burst then took, and its answer as the choice between storing
// and computing. A step is some work (timed spinning, or mma.sync) and a burst that is ready after it; the rules differ in
// the order of works and bursts.
#include "issue.cuh"
#include "tensor_work.cuh"
#include "xstage_pacer.cuh"

static constexpr u32 MAX_STEPS = 256, MAX_STORING_WARPS = 16;
static constexpr u32 TIMED = 0;  // each burst at its start_ns; no work
static constexpr u32 FIXED = 1;  // `depth` works, then their bursts, and so on; 1: each burst follows its work
static constexpr u32 PACED = 2;  // the next burst unless it would stall less later, another work then, while at most `depth` bursts wait
static constexpr u32 COMPUTE = 0, STORE = 1;

struct Step {  // mirrored by STEP in results/h200-x2/pacer/pacing.py
  u32 work, stores, start_ns, pad;  // cycles of spinning, or rounds of mma
};
struct Report {  // mirrored by REPORT: of one producer and burst, SM clock after the common start
  u32 answer, start, end, waiting;
};
struct Control {  // mirrored by CONTROL; zeroed before each launch
  u32 arrived, released, timed_out, pad;
  u64 start_ns, first_clock, first_ns, last_clock, last_ns;
};
struct Mark {
  u32 start, end;
};
struct Shared {
  Step steps[MAX_STEPS];
  Mark marks[MAX_STORING_WARPS];
  u64 start_ns;
  u32 action, run;
  u32 whole_warp;  // of taken_mask
};

// All CTAs meet once; the last one names a start a little ahead. The stage is empty: nothing has been stored in this launch.
static __device__ bool meet(Shared &s, Control *control, u32 lead_ns, u64 timeout_ns) {
  __syncthreads();
  if (threadIdx.x == 0) {
    volatile Control *c = control;
    s.run = 1;
    if (atomicAdd(&control->arrived, 1u) == gridDim.x - 1) {
      c->start_ns = global_timer_ns() + lead_ns;
      __threadfence();
      c->released = 1;
    }
    const u64 give_up = global_timer_ns() + timeout_ns;
    while (!c->released && s.run) {
      if (global_timer_ns() > give_up) s.run = 0;
      __nanosleep(64);
    }
    if (!s.run) c->timed_out = 1;
    __threadfence();
    s.start_ns = c->start_ns;
  }
  __syncthreads();
  return s.run;
}

// What comes next: thread 0 decides for all warps of the producer.
static __device__ u32 choose(u32 rule, u32 depth, u32 computed, u32 stored, u32 count, bool &flushing, const xstage::Pacer &pacer, u32 bytes) {
  const u32 waiting = computed - stored;
  if (rule == TIMED) return STORE;
  if (waiting == 0) flushing = false;
  if (waiting == depth || computed == count) flushing = true;
  if (rule == FIXED) return flushing ? STORE : COMPUTE;
  if (waiting == 0) return COMPUTE;
  if (waiting == depth || computed == count) return STORE;
  return pacer.better_later(bytes) ? COMPUTE : STORE;
}

extern "C" __global__ void __launch_bounds__(512, 1)
xstage_pacing(const Step *steps, u32 count, u32 rule, u32 depth, const short *producer_of, u32 warps, const xstage::Stage *fitted, char *destination,
              u32 window_bytes, u32 tag, Report *reports, Control *control, u32 lead_ns, u64 timeout_ns) {
  extern __shared__ __align__(128) char memory[];
  Shared &s = *reinterpret_cast<Shared *>(memory);
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int producer = producer_of[sm_id()];
  const xstage::Stage stage = *fitted;
  for (u32 i = threadIdx.x; i < count; i += blockDim.x) s.steps[i] = steps[i];
  // Plus zero, which no compiler knows: of a constant address even the shuffle is folded, and the read moved before the stores.
  const u32 whole_warp = taken_mask(s.whole_warp) + ~*(volatile u32 *)&s.whole_warp;
  if (!meet(s, control, lead_ns, timeout_ns) || producer < 0 || warp >= warps) return;

  const u32 groups = groups_per_warp(window_bytes, warps);
  char *const window = destination + (u64)producer * window_bytes + (u64)warp * groups * GROUP_BYTES;
  const Pattern p = pattern_of(tag, producer, warp, lane);
  const u64 zero = s.start_ns;
  while (global_timer_ns() < zero) {
  }
  const u64 epoch = sm_clock();
  if (producer == 0 && threadIdx.x == 0) {
    control->first_clock = epoch;
    control->first_ns = global_timer_ns();
  }
  auto pacer = xstage::Pacer::start(stage);
  u32 computed = rule == TIMED ? count : 0, stored = 0, group = 0;
  bool flushing = false;
  Sums sums;
  clear(sums);
  while (stored < count) {
    const Step next = s.steps[stored];
    const u32 bytes = next.stores * warps * WARP_STORE_BYTES;
    if (rule == TIMED)
      while (global_timer_ns() < zero + next.start_ns) {
      }
    u32 answer = 0;
    if (threadIdx.x == 0) {
      s.action = choose(rule, depth, computed, stored, count, flushing, pacer, bytes);
      if (s.action == STORE) {  // before the barrier: between it and the stores the other warps would not wait for this one
        answer = pacer.would_stall(bytes);
        pacer.note(bytes);
      }
    }
    producer_barrier(warps * 32);
    if (s.action == COMPUTE) {
      work(sums, nullptr, s.steps[computed].work, sm_clock());
      ++computed;
    } else {
      const u64 start = issue(window, groups, group, next.stores, p, lane, nullptr).start, end = clock_when_taken(whole_warp);
      if (lane == 0) s.marks[warp] = {(u32)(start - epoch), (u32)(end - epoch)};
      producer_barrier(warps * 32);
      if (threadIdx.x == 0) {
        pacer.settle();
        Report out = {answer, s.marks[0].start, s.marks[0].end, computed - stored};
#pragma unroll 1
        for (u32 w = 1; w < warps; ++w) {
          out.start = min(out.start, s.marks[w].start);
          out.end = max(out.end, s.marks[w].end);
        }
        reports[(u64)producer * count + stored] = out;
      }
      group += (next.stores + GROUP - 1) / GROUP;
      ++stored;
    }
    producer_barrier(warps * 32);  // nobody still reads the action or the marks
  }
  if (odd(sums)) control->timed_out = 1;  // never: it keeps the work from being left out
  if (producer == 0 && threadIdx.x == 0) {
    control->last_clock = sm_clock();
    control->last_ns = global_timer_ns();
  }
}
