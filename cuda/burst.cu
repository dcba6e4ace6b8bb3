// The instrument: executes a list of schedules ("items") in one launch and stamps every burst of every producer.
//
// One CTA per SM (the host asks for more than half of an SM's shared memory and launches cooperatively), so an SM is chosen by its
// %smid and the others idle at the barrier. Between two items the stage is emptied on purpose (system fence, grid barrier);
// between two bursts of an item it never is. Everything that a burst needs is in shared memory or registers before its first stamp.
#include "flavours.cuh"
#include "pattern.cuh"

static constexpr u32 MAX_WARPS = 16;
static constexpr u32 MAX_BURSTS = 256;
static constexpr u32 TIMELINE_STORES = 128;
static constexpr u32 ISOLATED = 0, FREE = 1, TIMED = 2;
static constexpr u32 DONE = 1, TIMED_OUT = 2;  // 0: never reached

struct Item {  // mirrored by ITEM in xstage_bench/device/cuda/layout.py
  u32 first_burst, bursts, warps, start_rule, producers, set, tag, result;
};
struct Burst {  // mirrored by BURST
  u32 stores, gap_cycles, start_ns, first_group;
};
struct Stamp {  // mirrored by STAMP: SM clock after the segment's epoch, %globaltimer after its deadline
  u32 start, end, end_ns, drained;
};
struct Verdict {  // mirrored by VERDICT
  u32 state, mismatches, offset, expected, found, pad;
  u64 clock, timer_ns;
};
struct Control {  // mirrored by CONTROL; zeroed before each launch
  u32 arrived, released, abort, pad;
  u64 start_ns[2];
};

struct Shared {
  Item item;
  Burst bursts[MAX_BURSTS];
  Stamp stamps[MAX_BURSTS][MAX_WARPS];
  u64 epoch, start_ns;
  int producer, run;
#ifdef XSTAGE_TIMELINE
  u32 timeline[MAX_WARPS][TIMELINE_STORES];
#endif
};

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

// The measured loop. Its unrolling is part of the instrument (docs/method.md): groups of four, then single stores.
static __device__ __forceinline__ void issue(char *window, u32 groups, u32 first_group, u32 stores, Pattern p, u32 lane, u32 *timeline, u64 &start,
                                             u64 &end) {
  char *const last = window + (u64)groups * GROUP_BYTES + lane * 16;
  char *const first = window + lane * 16;
  char *to = first + (u64)(first_group % groups) * GROUP_BYTES;
  u32 x = p.x + first_group * GROUP;
  u32 whole = stores / GROUP, rest = stores % GROUP;
#ifdef XSTAGE_TIMELINE
  u32 at = 0;
  start = sm_clock();
#define XSTAGE_MARK() \
  if (lane == 0 && at < TIMELINE_STORES) timeline[at] = (u32)(sm_clock() - start); \
  ++at;
#else
  start = sm_clock();
#define XSTAGE_MARK()
#endif
#pragma unroll 1
  for (; whole; --whole) {
#pragma unroll
    for (u32 i = 0; i < GROUP; ++i) {
      XSTAGE_FLAVOUR(to + i * WARP_STORE_BYTES, x + i, p.y, p.z, p.w);
      XSTAGE_MARK()
    }
    x += GROUP;
    to += GROUP_BYTES;
    if (to == last) to = first;
  }
#pragma unroll 1
  for (; rest; --rest) {
    XSTAGE_FLAVOUR(to, x, p.y, p.z, p.w);
    XSTAGE_MARK()
    ++x;
    to += WARP_STORE_BYTES;
  }
  end = sm_clock();
}

// Warp-stores, 0 to GROUP, that bursts [.., to) put into group g of a warp.
static __device__ u32 stores_in_group(const Shared &s, u32 to, u32 g) {
  u32 b = to - 1;
  while (s.bursts[b].first_group > g || s.bursts[b].stores == 0) --b;
  return min(GROUP, s.bursts[b].stores - (g - s.bursts[b].first_group) * GROUP);
}

// Read back over the link what this producer stored in bursts [from, to): each 512-byte slot must hold the last warp-store sent to
// it. All warps of the CTA share the work, a group of loads in flight each, or a long burst would take longer to check than to store.
static __device__ void read_back(const Shared &s, char *base, u32 window_bytes, u32 from, u32 to, Verdict *verdict) {
  const u32 lane = threadIdx.x % 32, groups = groups_per_warp(window_bytes, s.item.warps);
  const u32 begin = s.bursts[from].first_group, end = s.bursts[to - 1].first_group + (s.bursts[to - 1].stores + GROUP - 1) / GROUP;
  const u32 occupied = min(end - begin, groups);
  char *const window = base + (u64)s.producer * window_bytes;
#pragma unroll 1
  for (u32 t = threadIdx.x / 32; t < occupied * s.item.warps; t += blockDim.x / 32) {
    const u32 warp = t / occupied, g = end - 1 - t % occupied;
    const char *at = window + (u64)(warp * groups + g % groups) * GROUP_BYTES + lane * 16;
    uint4 have[GROUP];
#pragma unroll
    for (u32 i = 0; i < GROUP; ++i)
      asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(have[i].x), "=r"(have[i].y), "=r"(have[i].z), "=r"(have[i].w)
                   : "l"(at + i * WARP_STORE_BYTES)
                   : "memory");
    const Pattern want = pattern_of(s.item.tag, s.producer, warp, lane);
#pragma unroll
    for (u32 i = 0; i < GROUP; ++i) {
      u32 writer = g;  // a burst's last group may be partial: then the slot still holds a group one turn of the window earlier
      while (writer >= begin && i >= stores_in_group(s, to, writer)) {
        if (writer < begin + groups) goto unwritten;
        writer -= groups;
      }
      if (have[i].x != want.x + writer * GROUP + i || have[i].y != want.y || have[i].z != want.z || have[i].w != want.w) {
        if (atomicAdd(&verdict->mismatches, 1u) == 0) {
          verdict->offset = (u32)(at + i * WARP_STORE_BYTES - base);
          verdict->expected = want.x + writer * GROUP + i;
          verdict->found = have[i].x;
        }
      }
    unwritten:;
    }
  }
}

extern "C" __global__ void __launch_bounds__(512, 1)
xstage_burst(const Item *items, u32 item_count, const Burst *bursts, const short *producer_of, u32 sm_slots, char *destination, u32 window_bytes,
             Stamp *results, Verdict *verdicts, u32 *timelines, Control *control, u32 lead_ns, u64 timeout_ns) {
  extern __shared__ __align__(16) char memory[];
  Shared &s = *reinterpret_cast<Shared *>(memory);
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, smid = sm_id();
  u32 round = 0;

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
    char *const window = destination + (u64)(storing ? s.producer : 0) * window_bytes + (u64)warp * groups * GROUP_BYTES;
    const Pattern p = pattern_of(s.item.tag, s.producer, warp, lane);

    // An isolated burst is a segment of its own; otherwise all bursts of the item are one segment.
    const u32 step = rule == ISOLATED ? 1 : count;
    for (u32 from = 0; from < count; from += step) {
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
          u64 start, end;
#ifdef XSTAGE_TIMELINE
          u32 *timeline = s.timeline[warp];
#else
          u32 *timeline = nullptr;
#endif
          issue(window, groups, burst.first_group, burst.stores, p, lane, timeline, start, end);
          const u64 end_ns = global_timer_ns();
          if (lane == 0) {
            s.stamps[b][warp].start = since(start, epoch);
            s.stamps[b][warp].end = since(end, epoch);
            s.stamps[b][warp].end_ns = since(end_ns, zero);
            s.stamps[b][warp].drained = 0;
          }
        }
        __threadfence_system();
        if (lane == 0) s.stamps[from + step - 1][warp].drained = since(sm_clock(), epoch);
      }
      __syncthreads();  // all storing warps have fenced and stamped
      if (s.producer >= 0) read_back(s, destination, window_bytes, from, from + step, verdicts + n);
    }
    __syncthreads();
    if (s.producer >= 0) {
      for (u32 b = threadIdx.x; b < count; b += blockDim.x) {
        Stamp out = s.stamps[b][0];
#pragma unroll 1
        for (u32 w = 1; w < warps; ++w) {
          out.start = min(out.start, s.stamps[b][w].start);
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
