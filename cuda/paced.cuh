// A replay that asks, before each task's stores, whether to issue them now or to compute first. Who answers is a pacer that the host brings
// in as xstage_replay_pacer.cuh (docs/replay.md):
//
//   struct ReplayPacer {                                    // one per producer, in the registers of one thread
//     __device__ void begin(unsigned long long clock);      // at the common start
//     __device__ bool store_now(unsigned long long clock, unsigned int remote_bytes);  // of this producer
//     __device__ void stored(unsigned long long clock, unsigned int remote_bytes);     // issued just now
//   };
//
// Stores keep their order, so that the check of the destination stays what it is. At most MAX_PENDING tasks wait to be stored: a real kernel
// holds their results in shared memory.
#pragma once

#include "task_parts.cuh"
#include "xstage_replay_pacer.cuh"

static constexpr u32 MAX_PENDING = 4;
static constexpr u32 STORE_NOW = 1, DEFERRED = 2, FORCED = 4;  // bits of TaskStamp::answer

// One thread decides for all warps of the producer.
static __device__ __forceinline__ bool agreed(Shared &s, bool decider, bool decision, u32 threads) {
  if (decider) s.decision = decision;
  join(0, threads);
  const bool all = *(volatile u32 *)&s.decision;
  join(0, threads);
  return all;
}

static __device__ void execute_paced(Shared &s, u32 warp, u32 warps, u32 lane, Windows &windows, Pattern p, Sums &sums, u32 *events, u64 give_up,
                                     Repetition *out) {
  const u32 count = s.list.count, threads = warps * 32, inverse = 65536 / warps + 1;
  const u64 epoch = s.epoch;
  const bool decider = warp == 0 && lane == 0;
  ReplayPacer pacer;
  pacer.begin(sm_clock());
  u32 t = 0, next = 0, pending = 0;  // next: the first task that has not stored yet; pending: how many have computed and not stored
#pragma unroll 1
  while (t < count || pending) {
    bool blocked = t == count;  // nothing left to compute
    if (!blocked && pending) {
      const Task task = s.tasks[t];
      const bool waits = task.waits_for != NONE && decider && signals_seen(events + (u64)task.waits_for * EVENT_STRIDE) < task.target;
      blocked = agreed(s, decider, waits, threads);  // what others wait for may hang on the stores that are held back
    }
    if (!blocked) {
      const Task task = s.tasks[t];
      if (decider && task.waits_for != NONE) await(events, task, give_up, out);
      __syncwarp();
      join(0, threads);
      const u64 start = clock_after_barrier(s);
      work(sums, (const char *)&s.operands, task.compute, start);
      const u64 computed = sm_clock();
      if (lane == 0) {
        if (warp == 0) s.stamps[t].start = since(start, epoch);
        atomicMax(&s.stamps[t].computed, since(computed, epoch));
      }
      if (task.stores) ++pending;
      else if (task.signals != NONE) {
        join(0, threads);
        if (decider) {
          signal(events + (u64)task.signals * EVENT_STRIDE);
          s.stamps[t].signalled = since(sm_clock(), epoch);
        }
      }
      ++t;
    }
#pragma unroll 1
    while (pending) {
      while (!s.tasks[next].stores) ++next;
      const Task task = s.tasks[next];
      const u32 bytes = task.remote * WARP_STORE_BYTES;
      const bool forced = blocked || pending > MAX_PENDING;
      const bool now = decider && pacer.store_now(sm_clock(), bytes);
      if (decider) s.stamps[next].answer |= (now ? STORE_NOW : DEFERRED) | (forced && !now ? FORCED : 0);
      if (!agreed(s, decider, now || forced, threads)) break;
      u64 begin, end;
      issue(windows, task.stores, mix_of(task.stores, task.remote, task.uneven, warp, warps, inverse), p, begin, end);
      if (lane == 0) {
        atomicMax(&s.stamps[next].stored, since(end, epoch));
        atomicMax(&s.stamps[next].issue, since(end, begin));
      }
      join(0, threads);
      if (decider) {
        pacer.stored(sm_clock(), bytes);
        if (task.signals != NONE) {
          signal(events + (u64)task.signals * EVENT_STRIDE);
          s.stamps[next].signalled = since(sm_clock(), epoch);
        }
      }
      ++next;
      --pending;
    }
  }
}
