// The instrument: executes a list of schedules ("items") in one launch and stamps every burst of every producer.
//
// One CTA per SM (the host asks for more than half of an SM's shared memory and launches cooperatively), so an SM is chosen by its
// %smid and the others idle at the barrier. Between two items the stage is emptied on purpose (system fence, grid barrier);
// between two bursts of an item it never is. Everything that a burst needs is in shared memory or registers before its first stamp.
#include "completions.cuh"
#include "issue.cuh"
#include "readback.cuh"

static constexpr u32 MAX_WARPS = 16;
#if XSTAGE_IS_BULK
static constexpr u32 MAX_BURSTS = 64;  // the rest of the shared memory is the source
#else
static constexpr u32 MAX_BURSTS = 256;
#endif
static constexpr u32 ISOLATED = 0, FREE = 1, TIMED = 2;
#if XSTAGE_BY == XSTAGE_BY_SM
static constexpr int ELSEWHERE = -2;  // in producer_of: the idle SM that executes a completion for others
#endif
static constexpr u32 DONE = 1, TIMED_OUT = 2;  // 0: never reached

struct Item {  // mirrored by ITEM in xstage_bench/device/cuda/layout.py
  u32 first_burst, bursts, warps, start_rule, producers, set, tag, result;
};
struct Burst {  // mirrored by BURST
  u32 stores, gap_cycles, start_ns, first_group;
};
struct Stamp {  // mirrored by STAMP: SM clock after the segment's epoch, %globaltimer after its deadline
  u32 start, issued, end, end_ns, reusable, completed, drained;
};
struct Mark {  // what a warp keeps of a burst until the item ends; `end`: the SM has taken all of its stores
  u32 start, issued, end, end_ns, drained;
};
struct Verdict {  // mirrored by VERDICT
  u32 state, mismatches, offset, expected, found, elsewhere;
  u64 clock, timer_ns;
};
struct Control {  // mirrored by CONTROL; zeroed before each launch
  u32 arrived, released, abort, pad;
  u64 start_ns[2];
  u32 flags[256];
};

struct Shared {
  Item item;
  Burst bursts[MAX_BURSTS];
  Mark stamps[MAX_BURSTS][MAX_WARPS];
  u64 epoch, start_ns;
  int producer, run;
  u32 whole_warp;  // of taken_mask
#ifdef XSTAGE_TIMELINE
  u32 timeline[MAX_WARPS][TIMELINE_STORES];
#endif
#if XSTAGE_IS_BULK
  u32 reusable[MAX_BURSTS][MAX_WARPS], completed[MAX_BURSTS][MAX_WARPS];
#endif
};
#ifdef XSTAGE_SHARED_BYTES
static_assert(sizeof(Shared) <= XSTAGE_SHARED_BYTES, "the host asks for less shared memory than this needs");
#endif

// All CTAs meet; the last one to arrive sets a deadline a little ahead, so that producers start together to one timer tick.
static __device__ bool meet(Shared &s, Control *control, u32 round, u32 lead_ns, u64 timeout_ns) {
  __syncthreads();
  if (threadIdx.x == 0) {
    volatile Control *c = control;
    if (atomicAdd(&control->arrived, 1u) == (round + 1) * gridDim.x - 1) {
      c->start_ns[round & 1] = global_timer_ns() + lead_ns;
      __threadfence();  // the stage is empty here: every CTA has fenced before it arrived
      c->released = round + 1;
    }
    const u64 give_up = global_timer_ns() + timeout_ns;
    bool ok = true;
    while (c->released < round + 1) {
      if (c->abort || global_timer_ns() > give_up) {
        c->abort = 1;
        ok = false;
        break;
      }
      __nanosleep(64);
    }
    __threadfence();
    s.start_ns = c->start_ns[round & 1];
    s.run = ok;
    s.epoch = sm_clock();
  }
  __syncthreads();
  return s.run;
}

// Saturates: 32 bits hold 2.1 s of SM cycles, and a wrapped stamp would look like a short burst.
static __device__ __forceinline__ u32 since(u64 now, u64 zero) {
  const u64 d = now - zero;
  return d > 0xffffffffull ? 0xffffffffu : (u32)d;
}

extern "C" __global__ void __launch_bounds__(512, 1)
xstage_burst(const Item *items, u32 item_count, const Burst *bursts, const short *producer_of, u32 sm_slots, char *destination, u32 window_bytes,
             Stamp *results, Verdict *verdicts, u32 *timelines, Control *control, u32 lead_ns, u64 timeout_ns
#if XSTAGE_IS_TENSOR
             ,
             u64 tensor_map
#endif
) {
  extern __shared__ __align__(128) char memory[];
  Shared &s = *reinterpret_cast<Shared *>(memory);
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, smid = sm_id();
  u32 round = 0;
  const u32 whole_warp = taken_mask(s.whole_warp);
  const u32 nothing = ~*(volatile u32 *)&s.whole_warp;  // zero, which no compiler knows
#if XSTAGE_IS_TENSOR
  const u64 map = tensor_map_ready(tensor_map);
#endif

  for (u32 n = 0; n < item_count; ++n) {
    __syncthreads();  // nobody still reads the previous item
    if (threadIdx.x == 0) {
      s.item = items[n];
      s.producer = producer_of[s.item.set * sm_slots + smid];
    }
    __syncthreads();
    for (u32 b = threadIdx.x; b < s.item.bursts; b += blockDim.x) s.bursts[b] = bursts[s.item.first_burst + b];
    const u32 warps = s.item.warps, count = s.item.bursts, rule = s.item.start_rule;
    const bool storing = s.producer >= 0 && warp < warps;
    const u32 groups = groups_per_warp(window_bytes, warps);
#if XSTAGE_IS_BULK || XSTAGE_SEGMENTS
    char *const window = destination + (u64)(storing ? s.producer : 0) * window_bytes;
#else
    char *const window = destination + (u64)(storing ? s.producer : 0) * window_bytes + (u64)warp * groups * GROUP_BYTES + XSTAGE_OFFSET;
#endif
    Pattern p = pattern_of(s.item.tag, s.producer, warp, lane);
    p = {in_register(p.x), in_register(p.y), in_register(p.z), in_register(p.w)};
#if XSTAGE_IS_BULK
    const u32 shared = (u32)__cvta_generic_to_shared(memory);
    const u32 source_address = (shared + (u32)sizeof(Shared) + SOURCE_ALIGNMENT - 1) / SOURCE_ALIGNMENT * SOURCE_ALIGNMENT + warp * SOURCE_BYTES;
    if (storing) fill_source(memory + (source_address - shared), s.item.tag, s.producer, warp, lane);  // as many warps as fit
#endif

    // An isolated burst is a segment of its own; otherwise all bursts of the item are one segment.
    const u32 step = rule == ISOLATED ? 1 : count;
    for (u32 from = 0; from < count; from += step) {
#if XSTAGE_REDUCES
      // The window of this producer was another SM's in the item before, which may still be reading it back.
      if (meet(s, control, round++, 0, timeout_ns) && s.producer >= 0) zero_slots(s, destination, window_bytes, from, from + step);
#endif
      if (!meet(s, control, round++, lead_ns, timeout_ns)) {
        if (threadIdx.x == 0) atomicMax(&verdicts[n].state, TIMED_OUT);
        return;
      }
      if (blockIdx.x == 0 && threadIdx.x == 0 && from == 0) {
        verdicts[n].clock = sm_clock();
        verdicts[n].timer_ns = global_timer_ns();
      }
      if (storing) {
        const u64 epoch = s.epoch, zero = s.start_ns;
        while (global_timer_ns() < zero) {
        }
        for (u32 b = from; b < from + step; ++b) {
          const Burst burst = s.bursts[b];
          if (b > from) {
            producer_barrier(warps * 32);
            if (rule == FREE) {
              const u32 mine = lane < warps ? s.stamps[b - 1][lane].end : 0;
              const u64 until = epoch + __reduce_max_sync(0xffffffffu, mine) + burst.gap_cycles;
              while (sm_clock() < until) {
              }
            }
          }
          if (rule == TIMED) {
            while (global_timer_ns() < zero + burst.start_ns) {
            }
          }
#ifdef XSTAGE_TIMELINE
          u32 *timeline = s.timeline[warp];
#else
          u32 *timeline = nullptr;
#endif
#if XSTAGE_IS_TENSOR
          const Issue done = issue(map, (u32)((window - destination) / ARRAY_ROW_BYTES), window_bytes, warp, warps, burst.first_group,
                                   burst.stores, source_address, lane, timeline);
#elif XSTAGE_IS_BULK
          const Issue done = issue(window, window_bytes, warp, warps, burst.first_group, burst.stores, source_address, lane, timeline);
#elif XSTAGE_SEGMENTS
          const Issue done = issue(window, window_bytes, warp, warps, burst.first_group, burst.stores, p, lane, timeline);
#else
          const Issue done = issue(window, groups, burst.first_group, burst.stores, p, lane, timeline);
#endif
          const u64 end = clock_when_taken(whole_warp, done.issued);
          u32 kept = still_there(still_there(still_there(still_there((u32)end, done.word), p.y), p.z), p.w);
#pragma unroll
          for (u32 i = 0; i < ADDRESSES; ++i) kept = still_there(still_there(kept, (u32)done.address[i]), (u32)(done.address[i] >> 32));
          const u64 end_ns = global_timer_ns();
          if (lane == 0) {
            s.stamps[b][warp].start = since(done.start, epoch);
            s.stamps[b][warp].issued = since(done.issued, epoch);
            s.stamps[b][warp].end = since(end, epoch);
            s.stamps[b][warp].end_ns = since(end_ns, zero);
            s.stamps[b][warp].drained = kept & nothing;
          }
        }
        const u32 at = from + step - 1;
#if XSTAGE_IS_BULK
        if (lane == 0) {
          bulk_wait_read();
          s.reusable[at][warp] = since(sm_clock(), epoch);
          bulk_wait();
          s.completed[at][warp] = since(sm_clock(), epoch);
        }
        __syncwarp();
#endif
#if XSTAGE_BY == XSTAGE_BY_WARP
        hand_over((warps + 1) * 32);
        hand_back((warps + 1) * 32);
#elif XSTAGE_BY == XSTAGE_BY_SELF
        complete(control->flags + smid % 256, lane);
        if (lane == 0) s.stamps[at][warp].drained = since(sm_clock(), epoch);
#endif
#if XSTAGE_EMPTY_AFTER
        __threadfence_system();
#endif
      }
#if XSTAGE_BY == XSTAGE_BY_WARP
      if (s.producer >= 0 && warp == warps) {
        hand_over((warps + 1) * 32);
        complete(control->flags + smid % 256, lane);
        if (lane == 0) s.stamps[from + step - 1][0].drained = since(sm_clock(), s.epoch);
        hand_back((warps + 1) * 32);
      }
#elif XSTAGE_BY == XSTAGE_BY_SM
      if (s.producer == ELSEWHERE && warp == 0) {
        while (global_timer_ns() < s.start_ns + BY_SM_DELAY_NS) {
        }
        const u64 before = sm_clock();
        complete(control->flags + smid % 256, lane);
        if (lane == 0) atomicMax(&verdicts[n].elsewhere, since(sm_clock(), before));
      }
#endif
      __syncthreads();  // all storing warps have fenced and stamped
      if (s.producer >= 0) read_back(s, destination, window_bytes, from, from + step, verdicts + n);
    }
    __syncthreads();
    if (s.producer >= 0) {
      for (u32 b = threadIdx.x; b < count; b += blockDim.x) {
        const Mark own = s.stamps[b][0];
        Stamp out = {own.start, own.issued, own.end, own.end_ns, 0, 0, own.drained};
#pragma unroll 1
        for (u32 w = 0; w < warps; ++w) {
#if XSTAGE_IS_BULK
          if (rule == ISOLATED || b + 1 == count) {
            out.reusable = max(out.reusable, s.reusable[b][w]);
            out.completed = max(out.completed, s.completed[b][w]);
          }
#endif
          out.start = min(out.start, s.stamps[b][w].start);
          out.issued = max(out.issued, s.stamps[b][w].issued);
          out.end = max(out.end, s.stamps[b][w].end);
          out.end_ns = max(out.end_ns, s.stamps[b][w].end_ns);
          out.drained = max(out.drained, s.stamps[b][w].drained);
        }
        results[s.item.result + b * s.item.producers + s.producer] = out;
      }
#ifdef XSTAGE_TIMELINE
      if (storing)
        for (u32 i = lane; i < TIMELINE_STORES; i += 32)
          timelines[((u64)s.producer * MAX_WARPS + warp) * TIMELINE_STORES + i] = i < s.bursts[0].stores ? s.timeline[warp][i] : 0;
#endif
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) {
      atomicMax(&verdicts[n].state, DONE);
      verdicts[n + 1].clock = sm_clock();  // overwritten by the next item; after the last one it closes the clock measurement
      verdicts[n + 1].timer_ns = global_timer_ns();
    }
  }
}
