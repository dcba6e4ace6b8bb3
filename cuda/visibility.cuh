// What the three kernels of visibility.cu share: their orders, the words they meet through, and the ways to send a flag.
#pragma once

#include "issue.cuh"

static constexpr u32 MAX_WARPS = 16;
static constexpr u32 PROGRESS = 128;  // groups of one producer: a window of 256 KiB holds no more; longer bursts are stamped in part
static constexpr u32 BATCH = 4;       // loads in flight per polling thread
static constexpr u32 LEAD_NS = 3000;
static constexpr u32 NEVER = 0xffffffffu, STOP = 0xffffffffu;
static constexpr u32 CURVE = 0, PING = 1, MESSAGE = 2;
static constexpr u32 RELAXED = 0, RELEASE_GPU = 1, RELEASE_SYS = 2, RED_RELEASE_GPU = 3, RED_RELEASE_SYS = 4, FENCE_SC_SYS = 5;

struct Plan {  // mirrored by PLAN in xstage_bench/device/cuda/visibility.py; a kernel parameter, so that nothing is loaded in a window
  u32 repetitions, mode, method, format, producers, warps, stores, stride, streams, idle_pings, pings, message_warps, message_stores, publish, tag, window_bytes, misalign, pad;
  u64 timeout_ns, total_ns, data, source_box, destination_box, producer_of, delays, issue_stamps, progress, curve, ping_stamps, found, tensor_map;
};
struct Delay {  // mirrored by DELAY; one per repetition
  u32 ping_ns, lag_cycles;
};
struct IssueStamp {  // mirrored by ISSUE_STAMP: SM cycles; start_before is the age of the first start when %globaltimer read now_ns after go
  u32 start_before, issue, publish, now_ns;
  u32 reusable, completed;  // after the end of issue, of the slowest warp; bulk copies only
};
struct PingStamp {  // mirrored by PING_STAMP: SM cycles of the prober; at_ns after go, NEVER for those on an idle link
  u32 at_ns, issue, publish, round;
};
struct Found {  // mirrored by FOUND
  u64 wrong, torn, lines, timeouts;
};

// Words that different SMs or GPUs write lie in lines of their own.
struct SourceBox {
  u64 clock[2], timer_ns[2];  // both clocks of the prober's SM, around all repetitions; the host reads these, abort and prober
  alignas(128) u32 arrived;
  alignas(128) u32 go_round;
  u64 go_ns;
  alignas(128) u32 abort;
  alignas(128) u32 finished;
  u32 prober;
  alignas(128) u32 ready;
  alignas(128) u32 pong;
  alignas(128) u32 echo[1024];
};
struct DestinationBox {
  alignas(128) u32 ping;
  u32 command;
  alignas(128) u32 flag;
  alignas(128) u32 sink[256 * MAX_WARPS];
  alignas(128) char message[256 * 1024];
};

static __device__ __forceinline__ u32 tag_of(const Plan &a, u32 rep) { return (a.tag + rep + 1) * 0x9E3779B1u; }

// Where a piece of operation `store` of a warp lies in the destination's memory.
static __device__ __forceinline__ u64 piece_of(const Plan &a, u32 producer, u32 warp, u32 store, u32 piece) {
  return (u64)producer * a.window_bytes + place(a.window_bytes, warp, a.warps, store, piece);
}

static __device__ __forceinline__ u32 load(const u32 *p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

static __device__ __forceinline__ void store(u32 *p, u32 v) { asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory"); }

static __device__ __forceinline__ uint4 load_line(const char *p) {
  uint4 v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}

static __device__ __forceinline__ void barrier(u32 id, u32 threads) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// False for everybody as soon as it is false for one.
static __device__ __forceinline__ bool barrier_and(u32 id, u32 threads, bool mine) {
  u32 all;
  __syncwarp();
  asm volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; bar.red.and.pred q, %2, %3, p; selp.u32 %0, 1, 0, q; }"
               : "=r"(all)
               : "r"((u32)mine), "r"(id), "r"(threads)
               : "memory");
  return all;
}

static __device__ bool wait_for(const u32 *word, u32 at_least, SourceBox *box, u64 timeout_ns) {
  const u64 give_up = global_timer_ns() + timeout_ns;
  while (load(word) < at_least) {
    if (load(&box->abort) || global_timer_ns() > give_up) {
      store(&box->abort, 1);
      return false;
    }
    __nanosleep(40);
  }
  __threadfence();
  return true;
}

// The ways to set a flag. The clock is read inside each case: the choice costs nothing that is timed.
static __device__ __forceinline__ void send(u32 method, u32 *to, u32 value, u64 &before, u64 &after) {
#define XSTAGE_SEND(code) \
  before = sm_clock(); \
  code; \
  after = sm_clock(); \
  break;
  switch (method) {
    case RELEASE_GPU: XSTAGE_SEND(asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory"))
    case RELEASE_SYS: XSTAGE_SEND(asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory"))
    case RED_RELEASE_GPU: XSTAGE_SEND(asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(to) : "memory"))
    case RED_RELEASE_SYS: XSTAGE_SEND(asm volatile("red.release.sys.global.add.u32 [%0], 1;" ::"l"(to) : "memory"))
    case FENCE_SC_SYS: XSTAGE_SEND(asm volatile("fence.sc.sys; st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory"))
    default: XSTAGE_SEND(store(to, value))
  }
#undef XSTAGE_SEND
}
