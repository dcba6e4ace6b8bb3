// The replay: executes one TaskSchedule, tensor-core work and stores with the waits between them, and stamps every task.
//
// One CTA per SM; a table says by %smid which list of tasks an SM has. Lists and stamps are in shared memory for the whole execution. Both
// GPUs of a schedule that runs both ways start together. results/h200-x2/replay; xstage_bench/schedule/tasks.py has the meaning of each column.
#include "task_parts.cuh"

// One warp's part of its role's tasks. Everything that a task needs is in registers, and its event has happened, before its turn.
static __device__ void execute(Shared &s, u32 role, u32 warp, u32 warps, u32 lane, Windows &windows, Pattern p, Sums &sums, u32 *events, u64 give_up,
                               Repetition *out, u32 whole_warp) {
  const u32 count = s.list.count, threads = warps * 32, inverse = 65536 / warps + 1;
  const u64 epoch = s.epoch;
  const bool leader = warp == 0;
#pragma unroll 1
  for (u32 t = role; t < count; t += ROLES) {
    const Task task = s.tasks[t];
    const Mix mix = mix_of(task.stores, task.remote, task.uneven, warp, warps, inverse);
    if (leader && task.waits_for != NONE) {
      if (lane == 0) await(events, task, give_up, out);
      __syncwarp();
    }
    if (ROLES == 2) take_turn(role, threads);
    else join(role, threads);
    const u64 start = clock_after_barrier(s);
    work(sums, (const char *)&s.operands, task.compute, start);
    const u64 computed = sm_clock();
    if (ROLES == 2 && t + 1 < count) pass_turn(role, threads);
    u64 end = 0;
    if (task.stores) end = issue(windows, task.stores, mix, p, whole_warp);
    if (task.signals != NONE) {
      join(role, threads);  // what the role's other warps have stored goes before the release
      if (leader && lane == 0) {
        signal(events + (u64)task.signals * EVENT_STRIDE);
        s.stamps[t].signalled = since(sm_clock(), epoch);
      }
    }
    if (lane == 0) {
      if (leader) s.stamps[t].start = since(start, epoch);
      atomicMax(&s.stamps[t].computed, since(computed, epoch));
      if (task.stores) atomicMax(&s.stamps[t].stored, since(end, epoch));
    }
    __syncwarp();
  }
}

// The SM's clock at the edge of a tick of the timer, by one thread while the SM's other warps wait at a barrier: if all of them ask for the time, or store,
// it comes late by more than what a task waits for another SM's signal, and a task would seem to begin before its event.
static __device__ __forceinline__ void tie(u64 &clock, u64 &timer_ns) {
  const u64 before = global_timer_ns();
  u32 left = 100000;  // ticks of 1 us are known; a timer that stands still must not hang the GPU
  do timer_ns = global_timer_ns();
  while (timer_ns == before && --left);
  clock = sm_clock();
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
        const bool remote = goes_remote(warp * task.stores + (g - first) * GROUP + i, task.remote, whole);
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
  // Plus zero, which no compiler knows: of a constant address even the shuffle is folded, and the read moved before the stores.
  const u32 whole_warp = taken_mask(s.whole_warp) + ~*(volatile u32 *)&s.whole_warp;
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
    if (threadIdx.x == 0) tie(seal.clock, seal.timer_ns);
    __syncthreads();
    while (global_timer_ns() < zero) {
    }
    if (ROLES == 2 && role == 1) pass_turn(1, warps * 32);  // the first turn is the first role's
    execute(s, role, warp, warps, lane, windows, p, sums, events, give_up, out, whole_warp);
    if (lane == 0) atomicMax(&s.done_ns, since(global_timer_ns(), zero));
    __threadfence_system();
    if (lane == 0) atomicMax(&s.visible_ns, since(global_timer_ns(), zero));
    __syncthreads();
    if (threadIdx.x == 0) {
      tie(seal.end_clock, seal.end_timer_ns);
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
