// A scene: several schedules executed at the same time by several GPUs, and the company that they have to bear. One launch per GPU,
// one CTA per SM; a table says what each warp of each SM does ("seat"), so an SM can carry several producers, or none.
// A burst ends when the SM has taken its stores (stamps.cuh); its stores come in whole groups here. results/h200-x2/places, results/h200-x2/company.
#include "companions.cuh"
#include "flavours.cuh"
#include "pattern.cuh"
#include "rendezvous.cuh"

static constexpr u32 MAX_WARPS = 16, MAX_STREAMS = 16, MAX_BURSTS = 128, MAX_ALL_BURSTS = 512;
static constexpr u32 STORE_BYTES = 512, TURN = 4, TURN_BYTES = TURN * STORE_BYTES;  // of st.v4; one turn of the measured loop
static constexpr u32 FREE = 1, TIMED = 2;
static constexpr u32 PUSH = 0, PULL = 1, PULL_BULK = 2, COPY = 3;
static constexpr u32 DONE = 1, TIMED_OUT = 2;

struct Stream {  // mirrored by STREAM in xstage_bench/device/cuda/scene.py
  u64 address, bytes;  // bytes: of one producer's window, or of one warp's slice
  u32 kind, warps, producers, rule, first_burst, bursts, result, tag, slot_ns, index;
};
struct Seat {  // mirrored by SEAT; stream 0xffff: this warp idles
  unsigned short stream, producer, warp, first;
};
struct Step {  // mirrored by STEP; first_slot: first_group modulo the groups of a window (a division takes as long as two stores)
  u32 groups, gap_cycles, start_ns, first_group, first_slot;
};
struct SceneStamp {  // mirrored by SCENE_STAMP; work: tensor-core instructions of one warp in the gap before the burst
  u32 start, end, end_ns, drained, work;
};

struct Shared {
  Stream streams[MAX_STREAMS];
  Step steps[MAX_ALL_BURSTS];
  SceneStamp stamps[MAX_BURSTS][MAX_WARPS];
  Slots slots[MAX_WARPS];
  u64 epoch, start_ns;
  u32 run;
  u32 whole_warp;  // of taken_mask
#if __CUDA_ARCH__ >= 900
  u64 barriers[BULK_DEPTH];
  __align__(128) char ring[BULK_DEPTH * BULK_BYTES];
#endif
};

// All CTAs of all GPUs meet.
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

static __device__ __forceinline__ u32 since(u64 now, u64 zero) {
  const long long d = (long long)(now - zero);
  return d < 0 ? 0u : d > 0xffffffffll ? 0xffffffffu : (u32)d;
}

static __device__ __forceinline__ void join(u32 first, u32 warps) {
  if (warps > 1) asm volatile("bar.sync %0, %1;" ::"r"(first + 1), "r"(warps * 32) : "memory");
}

static __device__ __forceinline__ u32 idle_until(u64 until, u32 lane) {
#ifdef XSTAGE_GAP_MMA
  return multiply_until(until, lane);
#else
  while (sm_clock() < until) {
  }
  return 0;
#endif
}

static __device__ __forceinline__ void issue(char *window, u32 groups, Step step, Pattern p, u32 lane, u32 whole_warp, u64 &start, u64 &end) {
  char *const last = window + (u64)groups * TURN_BYTES + lane * 16;
  char *const first = window + lane * 16;
  char *to = first + (u64)step.first_slot * TURN_BYTES;
  u32 x = p.x + step.first_group * TURN, whole = step.groups;
  start = sm_clock();
#pragma unroll 1
  for (; whole; --whole) {
#pragma unroll
    for (u32 i = 0; i < TURN; ++i) XSTAGE_FLAVOUR(to + i * STORE_BYTES, x + i, p.y, p.z, p.w);
    x += TURN;
    to += TURN_BYTES;
    if (to == last) to = first;
  }
  end = clock_when_taken(whole_warp);
}

static __device__ void push(Shared &s, const Stream &stream, Seat seat, u32 round, u32 lane, u32 whole_warp) {
  const u32 own = threadIdx.x / 32, groups = (u32)(stream.bytes / stream.warps / TURN_BYTES);
  char *const window = (char *)stream.address + (u64)seat.producer * stream.bytes + (u64)seat.warp * groups * TURN_BYTES;
  const Pattern p = pattern_of(stream.tag + round * 0x9E3779B1u, seat.producer, seat.warp, lane);
  const u64 epoch = s.epoch, zero = s.start_ns;
  while (global_timer_ns() < zero) {
  }
  for (u32 b = 0; b < stream.bursts; ++b) {
    const Step step = s.steps[stream.first_burst + b];
    u32 work = 0;
    if (b) {
      join(seat.first, stream.warps);
      if (stream.rule == FREE) {
        const u32 mine = lane < stream.warps ? s.stamps[b - 1][seat.first + lane].end : 0;
        work = idle_until(epoch + __reduce_max_sync(0xffffffffu, mine) + step.gap_cycles, lane);
      }
    }
    if (stream.rule == TIMED)
      while (global_timer_ns() < zero + step.start_ns) {
      }
    u64 start, end;
    issue(window, groups, step, p, lane, whole_warp, start, end);
    const u64 end_ns = global_timer_ns();
    if (lane == 0) s.stamps[b][own] = {since(start, epoch), since(end, epoch), since(end_ns, zero), 0, work};
  }
  __threadfence_system();
  if (lane == 0) s.stamps[stream.bursts - 1][own].drained = since(sm_clock(), epoch);
}

// Outside all timed windows: what this warp stored last into each slot of its window must be there.
static __device__ void read_back(const Shared &s, const Stream &stream, Seat seat, u32 round, u32 lane, Repetition *out) {
  const u32 groups = (u32)(stream.bytes / stream.warps / TURN_BYTES);
  const Step end = s.steps[stream.first_burst + stream.bursts - 1];
  const u32 written = end.first_group + end.groups;
  const char *const window = (const char *)stream.address + (u64)seat.producer * stream.bytes + (u64)seat.warp * groups * TURN_BYTES;
  const Pattern want = pattern_of(stream.tag + round * 0x9E3779B1u, seat.producer, seat.warp, lane);
#pragma unroll 1
  for (u32 k = 0; k < min(written, groups); ++k) {
    const u32 g = written - 1 - k;
    const char *at = window + (u64)(g % groups) * TURN_BYTES + lane * 16;
#pragma unroll
    for (u32 i = 0; i < TURN; ++i) {
      uint4 have;
      asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(have.x), "=r"(have.y), "=r"(have.z), "=r"(have.w)
                   : "l"(at + i * STORE_BYTES)
                   : "memory");
      if (have.x != want.x + g * TURN + i || have.y != want.y || have.z != want.z || have.w != want.w)
        if (atomicAdd(&out->mismatches, 1u) == 0) {
          out->offset = (u32)(at + i * STORE_BYTES - (const char *)stream.address);
          out->expected = want.x + g * TURN + i;
          out->found = have.x;
        }
    }
  }
}

extern "C" __global__ void __launch_bounds__(512, 1)
xstage_scene(const Stream *streams, u32 stream_count, const Step *steps, u32 step_count, const Seat *seats, SceneStamp *stamps, u32 stamps_per_round,
             u64 *progress, Repetition *repetitions, u32 rounds, Control *control, Mail *const *mail, u32 rank, u32 ranks, u64 lead_ns,
             u64 timeout_ns) {
  extern __shared__ __align__(128) char memory[];
  Shared &s = *reinterpret_cast<Shared *>(memory);
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (u32 i = threadIdx.x; i < stream_count; i += blockDim.x) s.streams[i] = streams[i];
  for (u32 i = threadIdx.x; i < step_count; i += blockDim.x) s.steps[i] = steps[i];
  const Seat seat = seats[sm_id() * MAX_WARPS + warp];
  const bool busy = seat.stream != 0xffff;
  // Plus zero, which no compiler knows: of a constant address even the shuffle is folded, and the read moved before the stores.
  const u32 whole_warp = taken_mask(s.whole_warp) + ~*(volatile u32 *)&s.whole_warp;
  u64 letters = 0;
  for (u32 round = 0; round < rounds; ++round) {
    for (u32 i = lane; i < SLOTS; i += 32) s.slots[warp].count[i] = 0;
    Repetition *out = repetitions + round;
    if (!meet(s, control, mail, rank, ranks, round, letters, lead_ns, timeout_ns, out)) {
      if (threadIdx.x == 0) atomicMax(&out->state, TIMED_OUT);
      return;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      out->clock = sm_clock();
      out->timer_ns = global_timer_ns();
    }
    if (busy) {
      const Stream &stream = s.streams[seat.stream];
      if (stream.kind == PUSH) {
        push(s, stream, seat, round, lane, whole_warp);
      } else {
        const u64 zero = s.start_ns;
        while (global_timer_ns() < zero) {
        }
        char *const slice = (char *)stream.address + ((u64)seat.producer * stream.warps + seat.warp) * stream.bytes;
        if (stream.kind == PULL) pull(slice, stream.bytes, zero, stream.slot_ns, lane, s.slots[warp]);
        if (stream.kind == COPY) copy(slice, stream.bytes, zero, stream.slot_ns, lane, s.slots[warp]);
#if __CUDA_ARCH__ >= 900
        if (stream.kind == PULL_BULK)
          pull_bulk(slice, stream.bytes, zero, stream.slot_ns, timeout_ns, lane, s.ring, s.barriers, s.slots[warp]);
#endif
        __syncwarp();
        for (u32 i = lane; i < SLOTS; i += 32) atomicAdd(progress + ((u64)round * MAX_STREAMS + stream.index) * SLOTS + i, (u64)s.slots[warp].count[i]);
      }
    }
    __syncthreads();
    if (busy && s.streams[seat.stream].kind == PUSH) {
      const Stream &stream = s.streams[seat.stream];
      read_back(s, stream, seat, round, lane, out);
      if (seat.warp == 0)
        for (u32 b = lane; b < stream.bursts; b += 32) {
          SceneStamp sum = s.stamps[b][seat.first];
#pragma unroll 1
          for (u32 w = 1; w < stream.warps; ++w) {
            const SceneStamp other = s.stamps[b][seat.first + w];
            sum.start = min(sum.start, other.start);
            sum.end = max(sum.end, other.end);
            sum.end_ns = max(sum.end_ns, other.end_ns);
            sum.drained = max(sum.drained, other.drained);
            sum.work = max(sum.work, other.work);
          }
          stamps[(u64)round * stamps_per_round + stream.result + b * stream.producers + seat.producer] = sum;
        }
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      out->end_clock = sm_clock();
      out->end_timer_ns = global_timer_ns();
      atomicMax(&out->state, DONE);
    }
  }
}
