// The replay: executes one TaskSchedule, tensor-core work and stores with the waits between them, and stamps every task.
//
// One CTA per SM; a table says by %smid which list of tasks an SM has. Lists and stamps are in shared memory for the whole execution. Both
// GPUs of a schedule that runs both ways start together. docs/replay.md; xstage_bench/task_schedule.py has the meaning of each column.
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
static constexpr u32 EVENT_STRIDE = 8;  // words: two events share no 32-byte sector, which is what the L2 locks for an atomic
static constexpr u32 NONE = 0xffffffffu;
static constexpr u32 DONE = 1, TIMED_OUT = 2;

struct Task {  // mirrored by TASK in xstage_bench/device/cuda/tasks.py
  u32 compute, stores, remote, waits_for, target, signals;
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
};
#ifdef XSTAGE_SHARED_BYTES
static_assert(sizeof(Shared) <= XSTAGE_SHARED_BYTES, "the host asks for less shared memory than this needs");
#endif

static __device__ __forceinline__ u32 since(u64 now, u64 zero) {
  const long long d = (long long)(now - zero);
  return d < 0 ? 0u : d > 0xffffffffll ? 0xffffffffu : (u32)d;
}

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

static __device__ __forceinline__ void signal(u32 *event) {
#if XSTAGE_PUBLISH == 0
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(event) : "memory");
#elif XSTAGE_PUBLISH == 1
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(event) : "memory");
#else
  asm volatile("red.release.sys.global.add.u32 [%0], 1;" ::"l"(event) : "memory");
#endif
}

// Which of a task's warp-stores go to the destination: number k of N does when floor((k + 1) R / N) > floor(k R / N). A warp's own are
// neighbours in k, so every warp sees the mix. `at` is k R mod N; nothing is divided between two stores.
struct Mix {
  u32 at, step, whole, threshold;
};

static __device__ __forceinline__ Mix mix_of(Task task, u32 warp, u32 warps) {
  const u32 whole = task.stores * warps;
  return {task.stores * (warp * task.remote % warps), task.remote, whole, whole - task.remote};
}

static __device__ __forceinline__ bool remote_next(Mix &mix) {
  const bool remote = mix.at >= mix.threshold;
  mix.at += mix.step;
  if (mix.at >= mix.whole) mix.at -= mix.whole;
  return remote;
}

// One warp's part of a window, on the destination and on the source; a task's stores begin on a group's boundary and wrap around.
struct Windows {
  char *remote, *local;
  u32 groups, slot, group;
};

static __device__ __forceinline__ void issue(Windows &w, u32 stores, Mix mix, Pattern p, u32 &stored, u64 epoch) {
  u32 x = p.x + w.group * GROUP, slot = w.slot;
  char *remote = w.remote + (u64)slot * GROUP_BYTES, *local = w.local + (u64)slot * GROUP_BYTES;
  const u64 length = (u64)w.groups * GROUP_BYTES;
  const u32 all = (stores + GROUP - 1) / GROUP;
#pragma unroll 1
  for (u32 whole = stores / GROUP; whole; --whole) {
#pragma unroll
    for (u32 i = 0; i < GROUP; ++i) XSTAGE_FLAVOUR((remote_next(mix) ? remote : local) + i * WARP_STORE_BYTES, x + i, p.y, p.z, p.w);
    x += GROUP;
    remote += GROUP_BYTES;
    local += GROUP_BYTES;
    if (++slot == w.groups) slot = 0, remote -= length, local -= length;
  }
  const u32 rest = stores % GROUP;
#pragma unroll 1
  for (u32 i = 0; i < rest; ++i) {
    XSTAGE_FLAVOUR((remote_next(mix) ? remote : local), x, p.y, p.z, p.w);
    x += 1;
    remote += WARP_STORE_BYTES;
    local += WARP_STORE_BYTES;
  }
  stored = since(sm_clock(), epoch);
  if (rest && ++slot == w.groups) slot = 0;
  w.slot = slot;
  w.group += all;
}

// One warp's part of its role's tasks. Everything that a task needs is in registers, and its event has happened, before its turn.
static __device__ void execute(Shared &s, u32 role, u32 warp, u32 warps, u32 lane, Windows &windows, Pattern p, Sums &sums, u32 *events, u64 give_up,
                               Repetition *out) {
  const u32 count = s.list.count, threads = warps * 32;
  const u64 epoch = s.epoch;
  const bool leader = warp == 0;
#pragma unroll 1
  for (u32 t = role; t < count; t += ROLES) {
    const Task task = s.tasks[t];
    const Mix mix = mix_of(task, warp, warps);
    if (leader && task.waits_for != NONE) {
      if (lane == 0)
        while (signals_seen(events + (u64)task.waits_for * EVENT_STRIDE) < task.target)
          if (global_timer_ns() > give_up) {
            atomicMax(&out->state, TIMED_OUT);
            break;
          }
      __syncwarp();
    }
    if (ROLES == 2) take_turn(role, threads);
    else join(role, threads);
    const u64 start = sm_clock();
    work(sums, (const char *)&s.operands, task.compute, start);
    const u64 computed = sm_clock();
    if (ROLES == 2 && t + 1 < count) pass_turn(role, threads);
    u32 stored = 0;
    if (task.stores) issue(windows, task.stores, mix, p, stored, epoch);
    if (lane == 0) {
      if (leader) s.stamps[t].start = since(start, epoch);
      atomicMax(&s.stamps[t].computed, since(computed, epoch));
      if (task.stores) atomicMax(&s.stamps[t].stored, stored);
    }
    if (task.signals != NONE) {
      join(role, threads);  // what the role's other warps have stored goes before the release
      if (leader && lane == 0) {
        signal(events + (u64)task.signals * EVENT_STRIDE);
        s.stamps[t].signalled = since(sm_clock(), epoch);
      }
      __syncwarp();
    }
  }
}

// Outside all timed windows, both GPUs being done: each slot that a warp wrote last must hold what it wrote, where it was sent.
static __device__ void read_back(const Shared &s, u32 role, u32 warp, u32 warps, u32 lane, const Windows &w, Pattern p, Repetition *out) {
  u32 end = w.group;
  const u32 begin = end > w.groups ? end - w.groups : 0;
  for (u32 n = (s.list.count + ROLES - 1 - role) / ROLES; n-- > 0 && end > begin;) {
    const Task task = s.tasks[role + n * ROLES];
    const u32 first = end - (task.stores + GROUP - 1) / GROUP, whole = task.stores * warps;
    for (u32 g = max(first, begin); g < end; ++g)
      for (u32 i = 0; i < GROUP && (g - first) * GROUP + i < task.stores; ++i) {
        const u64 k = (u64)warp * task.stores + (g - first) * GROUP + i;
        const bool remote = k * task.remote % whole >= whole - task.remote;
        const u64 offset = (u64)(g % w.groups) * GROUP_BYTES + i * WARP_STORE_BYTES;
        u32 have[PIECE_WORDS];
        load_piece((remote ? w.remote : w.local) + offset, have);
#pragma unroll
        for (u32 word = 0; word < PIECE_WORDS; ++word) {
          const u32 want = expected_word(p, word, g * GROUP + i, 1);
          if (have[word] != want && atomicAdd(&out->mismatches, 1u) == 0) {
            out->offset = (u32)offset;
            out->expected = want;
            out->found = have[word];
            out->pad = remote << 31 | s.list.producer << 8 | (role * warps + warp);
          }
        }
      }
    end = first;
  }
}

extern "C" __global__ void __launch_bounds__(512, 1)
xstage_tasks(const Task *tasks, const List *lists, TaskStamp *stamps, Seal *seals, u32 *events, char *remote, char *local, u32 window_bytes, u32 tag,
             Repetition *out, Control *control, Mail *const *mail, u32 rank, u32 ranks, u64 lead_ns, u64 timeout_ns) {
  extern __shared__ __align__(1024) char memory[];
  Shared &s = *reinterpret_cast<Shared *>(memory);
  const u32 lane = threadIdx.x % 32, all = blockDim.x / 32, warps = all / ROLES, role = threadIdx.x / 32 / warps, warp = threadIdx.x / 32 % warps;
  if (threadIdx.x == 0) {
    s.list = lists[sm_id()];
    s.done_ns = s.visible_ns = 0;
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < s.list.count; i += blockDim.x) {
    s.tasks[i] = tasks[s.list.first + i];
    s.stamps[i] = {0, 0, 0, 0};
  }
  fill_operands((char *)&s.operands);
  Sums sums;
  clear(sums);
  const u32 own = role * warps + warp, groups = window_bytes / all / GROUP_BYTES;
  const u64 begin = (u64)s.list.producer * window_bytes + (u64)own * groups * GROUP_BYTES + lane * PIECE_BYTES;
  Windows windows = {remote + begin, local + begin, groups, 0, 0};
  const Pattern p = pattern_of(tag, s.list.producer, own, lane);
  u64 letters = 0;

  if (!meet(s, control, mail, rank, ranks, 0, letters, lead_ns, timeout_ns, out)) {
    if (threadIdx.x == 0) atomicMax(&out->state, TIMED_OUT);
    return;
  }
  const u64 zero = s.start_ns, give_up = zero + timeout_ns;
  Seal seal;
  if (s.list.count) {
    while (global_timer_ns() < zero) {
    }
    seal.clock = sm_clock();
    seal.timer_ns = global_timer_ns();
    if (ROLES == 2 && role == 1) pass_turn(1, warps * 32);  // the first turn is the first role's
    execute(s, role, warp, warps, lane, windows, p, sums, events, give_up, out);
    if (lane == 0) atomicMax(&s.done_ns, since(global_timer_ns(), zero));
    __threadfence_system();
    if (lane == 0) atomicMax(&s.visible_ns, since(global_timer_ns(), zero));
    seal.end_clock = sm_clock();
    seal.end_timer_ns = global_timer_ns();
    __syncthreads();
    if (threadIdx.x == 0) {
      seal.done_ns = s.done_ns + odd(sums);
      seal.visible_ns = s.visible_ns;
      seal.epoch = s.epoch;
      seal.zero_ns = zero;
      seals[s.list.producer] = seal;
    }
    for (u32 i = threadIdx.x; i < s.list.count; i += blockDim.x) stamps[s.list.first + i] = s.stamps[i];
  }
  if (!meet(s, control, mail, rank, ranks, 1, letters, 0, timeout_ns, out)) {
    if (threadIdx.x == 0) atomicMax(&out->state, TIMED_OUT);
    return;
  }
  if (s.list.count) read_back(s, role, warp, warps, lane, windows, p, out);
  __syncthreads();
  if (threadIdx.x == 0) atomicMax(&out->state, DONE);
}
