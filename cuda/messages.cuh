// A message of whole warp-stores and the ways to say that it is complete: a flag after a fence, or flags inside the data in the manner
// of NCCL's LL and LL128. The receiver reads every word and counts lines whose flag was new and whose data was not.
#pragma once

#include "visibility.cuh"

static constexpr u32 LINE_STORE_BYTES = 512;  // 16 bytes per lane, whatever the backlog is made of
static constexpr u32 FLAG = 0;       // 16 B of data per lane; barrier; one thread releases a flag (the method says how)
static constexpr u32 FLAG_EACH = 1;  // every thread executes __threadfence_system(), barrier, plain flag; by PTX's model none of these fences is the flag's
static constexpr u32 LL = 2;         // per lane two pairs of 4 B data and 4 B flag; needs 8-byte stores to be whole
static constexpr u32 LL128 = 3;      // per 8 lanes 120 B of data and 8 B of flag; needs 128-byte lines to be whole
static constexpr u32 LL512 = 4;      // one flag per warp-store: nobody promises that; it shows what the count sees when it goes wrong

struct Sending {
  u64 go_ns;
  u32 run, more;
  u64 start[MAX_WARPS], issued[MAX_WARPS];
};
struct Receiving {
  u32 run, stop;
};

// Words of message `sequence`: all of them change with every message.
static __device__ __forceinline__ uint4 line_of(u32 format, u32 sequence, u32 slot) {
  const u32 x = sequence * 0x9E3779B1u + slot * 4u;
  uint4 v = make_uint4(x, x + 1, x + 2, x + 3);
  if (format == LL) v.y = v.w = sequence;
  if ((format == LL128 && slot % 8 == 7) || (format == LL512 && slot % 32 == 31)) v.z = v.w = sequence;
  return v;
}

static __device__ bool send_message(const Plan &a, Sending &s, u32 sequence, u64 go, PingStamp *out) {
  SourceBox *const box = (SourceBox *)a.source_box;
  DestinationBox *const there = (DestinationBox *)a.destination_box;
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, threads = a.message_warps * 32, format = a.format;
  char *const to = there->message + a.misalign + lane * 16;
  barrier(1, threads);
  const u64 at = global_timer_ns(), start = sm_clock();
  for (u32 w = warp; w < a.message_stores; w += a.message_warps) {
    const uint4 v = line_of(format, sequence, w * 32 + lane);
    if (format >= LL)
      asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to + w * LINE_STORE_BYTES), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
    else
      st_v4(to + w * LINE_STORE_BYTES, v.x, v.y, v.z, v.w);
  }
  const u64 issued = sm_clock();
  if (format == FLAG_EACH) __threadfence_system();
  if (lane == 0) {
    s.start[warp] = start;
    s.issued[warp] = issued;
  }
  barrier(1, threads);
  bool ok = true;
  if (threadIdx.x == 0) {
    u64 first = start, last = issued, published = issued;
    for (u32 w = 1; w < a.message_warps; ++w) {
      first = min(first, s.start[w]);
      last = max(last, s.issued[w]);
    }
    if (format < LL) {
      u64 before;
      send(format == FLAG ? a.method : RELAXED, &there->flag, sequence, before, published);
    }
    const u64 give_up = global_timer_ns() + a.timeout_ns;
    while (load(&box->pong) != sequence) {
      if (global_timer_ns() > give_up) {
        store(&box->abort, 1);
        ok = false;
        break;
      }
    }
    const u64 seen = sm_clock();
    *out = {go ? (u32)(at - go) : NEVER, (u32)(last - first), published > last ? (u32)(published - last) : 0u, (u32)(seen - first)};
  }
  return barrier_and(1, threads, ok);
}

// Whether this lane's line is announced: by its own flags, by its 8 lanes', by its warp's, or already by the flag word.
static __device__ __forceinline__ bool announced(u32 format, const uint4 &v, u32 sequence, u32 lane) {
  if (format < LL) return true;
  if (format == LL) return v.y == sequence && v.w == sequence;
  const bool flag = v.z == sequence && v.w == sequence;
  return __shfl_sync(0xffffffffu, (u32)flag, format == LL128 ? lane | 7 : 31);
}

static __device__ bool receive_message(const Plan &a, Receiving &s, u32 sequence, SourceBox *back, DestinationBox *box, Found *found) {
  const u32 warp = threadIdx.x / 32 - 1, lane = threadIdx.x % 32, threads = a.message_warps * 32, format = a.format;
  const char *const from = box->message + a.misalign + lane * 16;
  volatile u32 *const stop = &s.stop;
  bool got = true;
  if (format < LL) {
    if (threadIdx.x == 32) {
      u32 flag = 0;
      do {
        asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(flag) : "l"(&box->flag) : "memory");
      } while (flag != sequence && !*stop);
      got = flag == sequence;
    }
    got = barrier_and(2, threads, got);
  }
  u32 torn = 0;
  for (u32 w = warp; got && w < a.message_stores; w += a.message_warps * BATCH) {
    bool complete = false;
    while (!complete) {
      uint4 v[BATCH];
      complete = true;
#pragma unroll
      for (u32 k = 0; k < BATCH; ++k)
        if (w + k * a.message_warps < a.message_stores) v[k] = load_line(from + (w + k * a.message_warps) * LINE_STORE_BYTES);
#pragma unroll
      for (u32 k = 0; k < BATCH; ++k) {
        if (w + k * a.message_warps >= a.message_stores) continue;
        const bool mine = announced(format, v[k], sequence, lane);
        const uint4 want = line_of(format, sequence, (w + k * a.message_warps) * 32 + lane);
        if (mine && (v[k].x != want.x || v[k].y != want.y || v[k].z != want.z || v[k].w != want.w)) ++torn;
        complete = complete && mine;
      }
      complete = __all_sync(0xffffffffu, complete);
      if (!complete && __any_sync(0xffffffffu, *stop)) {
        got = false;
        break;
      }
    }
  }
  got = barrier_and(2, threads, got);
  if (got && threadIdx.x == 32) store(&back->pong, sequence);
  if (torn) atomicAdd(&found->torn, (u64)torn);
  if (got && lane == 0) atomicAdd(&found->lines, (u64)((a.message_stores - warp + a.message_warps - 1) / a.message_warps) * 4);
  return got;
}
