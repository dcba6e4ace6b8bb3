// What a task of the replay is made of: its entry in an SM's list, its turn, its event, its stores. cuda/tasks.cu puts them together.
#pragma once

#include "mix.cuh"
#include "pattern.cuh"
#include "rendezvous.cuh"
#include "tensor_work.cuh"

#ifndef XSTAGE_ROLES  // 1: single, 2: ping-pong
#define XSTAGE_ROLES 2
#endif
#ifndef XSTAGE_PUBLISH  // 0: relaxed, 1: release.gpu, 2: release.sys
#define XSTAGE_PUBLISH 1
#endif

static constexpr u32 ROLES = XSTAGE_ROLES;
static constexpr u32 MAX_SM_TASKS = 3072;
static constexpr u32 EVENT_STRIDE = 8;  // words: two events share no 32-byte sector
static constexpr u32 NONE = 0xffffffffu;
static constexpr u32 DONE = 1, TIMED_OUT = 2;

struct Task {  // mirrored by TASK in xstage_bench/device/cuda/tasks.py
  u32 compute, stores, remote, waits_for, target, signals, uneven, pad;  // uneven: remote modulo the warps of a role
};
struct TaskStamp {  // mirrored by TASK_STAMP: SM clock after the epoch
  u32 start, computed, stored, signalled;
};
struct List {  // mirrored by LIST: the tasks of the SM with this smid
  u32 first, count, producer, pad;
};
struct Seal {  // mirrored by SEAL: of one SM
  u32 done_ns, visible_ns;
  u64 epoch, zero_ns, clock, timer_ns, end_clock, end_timer_ns;
};

struct Shared {
#if XSTAGE_COMPUTE == XSTAGE_WGMMA
  __align__(1024) char operands[OPERAND_BYTES];
#else
  char *operands;
#endif
  Task tasks[MAX_SM_TASKS];
  TaskStamp stamps[MAX_SM_TASKS];
  List list;
  u64 epoch, start_ns;
  u32 run, done_ns, visible_ns;
  u32 whole_warp;  // of taken_mask
};
#ifdef XSTAGE_SHARED_BYTES
static_assert(sizeof(Shared) <= XSTAGE_SHARED_BYTES, "the host asks for less shared memory than this needs");
#endif

static __device__ __forceinline__ u32 since(u64 now, u64 zero) { return (u32)(now - zero); }  // the host refuses what would take 2 s

static __device__ bool meet(Shared &s, Control *control, Mail *const *mail, u32 rank, u32 ranks, u32 round, u64 &letters, u64 lead_ns, u64 timeout_ns,
                            Repetition *out) {
  __syncthreads();
  if (threadIdx.x == 0) {
    s.run = gather(control, mail, rank, ranks, round, letters, lead_ns, timeout_ns, out, s.start_ns);
    s.epoch = sm_clock();
  }
  __syncthreads();
  return s.run;
}

// Named barriers: 1 and 2 hand the tensor cores to a role, 3 and 4 join the warps of a role. Neither orders memory beyond the CTA.
static __device__ __forceinline__ void take_turn(u32 role, u32 threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + role), "r"(2 * threads) : "memory");
}
static __device__ __forceinline__ void pass_turn(u32 role, u32 threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(2 - role), "r"(2 * threads) : "memory");
}
static __device__ __forceinline__ void join(u32 role, u32 threads) { asm volatile("bar.sync %0, %1;" ::"r"(3 + role), "r"(threads) : "memory"); }

static __device__ __forceinline__ u32 signals_seen(const u32 *event) {
  u32 n;
#if XSTAGE_PUBLISH == 0
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(event) : "memory");
#elif XSTAGE_PUBLISH == 1
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(event) : "memory");
#else
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(n) : "l"(event) : "memory");
#endif
  return n;
}

// One thread waits until a task's event has happened.
static __device__ __forceinline__ void await(const u32 *events, const Task &task, u64 give_up, Repetition *out) {
  while (signals_seen(events + (u64)task.waits_for * EVENT_STRIDE) < task.target)
    if (global_timer_ns() > give_up) {
      atomicMax(&out->state, TIMED_OUT);
      break;
    }
}

static __device__ __forceinline__ void signal(u32 *event) {
#if XSTAGE_PUBLISH == 0
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(event) : "memory");
#elif XSTAGE_PUBLISH == 1
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(event) : "memory");
#else
  asm volatile("red.release.sys.global.add.u32 [%0], 1;" ::"l"(event) : "memory");
#endif
}

// One warp's part of a window, on the destination and on the source; a task's stores begin on a group's boundary and wrap around.
struct Windows {
  char *remote, *local;
  u32 groups, slot, group;
};

// Returns the clock when the SM has taken them all; `whole_warp` as for clock_when_taken.
static __device__ __forceinline__ u64 issue(Windows &w, u32 stores, Mix mix, Pattern p, u32 whole_warp) {
  u32 x = p.x + w.group, slot = w.slot;
  char *remote = w.remote + (u64)slot * GROUP_BYTES, *local = w.local + (u64)slot * GROUP_BYTES;
  const u64 length = (u64)w.groups * GROUP_BYTES;
#pragma unroll 1
  for (u32 whole = stores / GROUP; whole; --whole) {
#pragma unroll
    for (u32 i = 0; i < GROUP; ++i) XSTAGE_FLAVOUR((remote_next(mix) ? remote : local) + i * WARP_STORE_BYTES, x, p.y, p.z, p.w);
    x += 1;
    remote += GROUP_BYTES;
    local += GROUP_BYTES;
    if (++slot == w.groups) slot = 0, remote -= length, local -= length;
  }
  const u32 rest = stores % GROUP;
#pragma unroll 1
  for (u32 i = 0; i < rest; ++i) {
    XSTAGE_FLAVOUR((remote_next(mix) ? remote : local), x, p.y, p.z, p.w);
    remote += WARP_STORE_BYTES;
    local += WARP_STORE_BYTES;
  }
  const u64 end = clock_when_taken(whole_warp);
  if (rest && ++slot == w.groups) slot = 0;
  w.slot = slot;
  w.group += (stores + GROUP - 1) / GROUP;
  return end;
}

// The clock behind a barrier. A warp that waits at BAR.SYNC issues a clock read that follows it (the barrier blocks at the next memory
// access or branch that needs a result), so that the wait would count as work: first a load that may not pass the barrier, and a branch on it.
static __device__ __forceinline__ u64 clock_after_barrier(const Shared &s) {
  if (*(const volatile u32 *)&s.run == 2) __trap();
  return sm_clock();
}
