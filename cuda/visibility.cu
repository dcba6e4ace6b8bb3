// When a store becomes visible: three kernels at once. xstage_vis_produce makes the backlog on the source, xstage_vis_respond watches
// the destination's memory and answers, xstage_vis_probe sits on an idle SM of the source, sends flags or messages and stamps every
// answer. All times are of the source's clocks: nothing is synchronised between GPUs.
//
// The three meet through words in the source's memory (SourceBox) and in the destination's (DestinationBox). Every wait ends by itself.
#include "messages.cuh"
#include "visibility.cuh"

// ---- the backlog: producers chosen by smid; -2 leaves its SM to the prober or the responder, -1 keeps it occupied and idle ----

struct Producing {
  u64 go_ns;
  u32 run, lag;
  u64 start[MAX_WARPS], end[MAX_WARPS];
  u32 publish[MAX_WARPS], reusable[MAX_WARPS], completed[MAX_WARPS];
  u32 progress[PROGRESS];
  u32 whole_warp;  // of taken_mask
};

#ifdef XSTAGE_WHOLE_BURST
// A burst of any flavour and layout, by the loop of the instrument itself: nothing is stamped inside. Bulk copies: cycles after the end of
// issue until the source may be written again, and until the copies are made as far as this thread can know.
static __device__ __forceinline__ void whole_burst(const Plan &a, char *memory, u32 rep, u32 producer, u32 warp, u32 lane, u64 go,
                                                   u32 whole_warp, u64 &start, u64 &end, u32 &reusable, u32 &completed) {
  char *const window = (char *)a.data + (u64)producer * a.window_bytes;
  const u32 groups = groups_per_warp(a.window_bytes, a.warps);
#if XSTAGE_IS_BULK
  const u32 shared = (u32)__cvta_generic_to_shared(memory);
  const u32 source = (shared + SOURCE_ALIGNMENT - 1) / SOURCE_ALIGNMENT * SOURCE_ALIGNMENT + warp * SOURCE_BYTES;
  fill_source(memory + (source - shared), tag_of(a, rep), producer, warp, lane);
#else
  const Pattern p = pattern_of(tag_of(a, rep), producer, warp, lane);
#endif
#if XSTAGE_IS_TENSOR
  const u64 map = tensor_map_ready(a.tensor_map);
#endif
  __syncwarp();
  while (global_timer_ns() < go) {
  }
#if XSTAGE_IS_TENSOR
  start = issue(map, producer * (a.window_bytes / ARRAY_ROW_BYTES), a.window_bytes, warp, a.warps, 0, a.stores, source, lane, nullptr).start;
#elif XSTAGE_IS_BULK
  start = issue(window, a.window_bytes, warp, a.warps, 0, a.stores, source, lane, nullptr).start;
#elif XSTAGE_SEGMENTS
  start = issue(window, a.window_bytes, warp, a.warps, 0, a.stores, p, lane, nullptr).start;
#else
  start = issue(window + place(a.window_bytes, warp, a.warps, 0, 0), groups, 0, a.stores, p, lane, nullptr).start;
#endif
  end = clock_when_taken(whole_warp);
#if XSTAGE_IS_BULK
  if (lane == 0) {
    bulk_wait_read();
    reusable = (u32)(sm_clock() - end);
    bulk_wait();
    completed = (u32)(sm_clock() - end);
  }
#endif
}
#endif

extern "C" __global__ void __launch_bounds__(512, 1) xstage_vis_produce(const __grid_constant__ Plan a) {
  __shared__ Producing s;
#ifdef XSTAGE_WHOLE_BURST
  extern __shared__ __align__(128) char memory[];
#endif
  SourceBox *const box = (SourceBox *)a.source_box;
  DestinationBox *const there = (DestinationBox *)a.destination_box;
  const u32 warp = threadIdx.x / 32, lane = threadIdx.x % 32, groups = a.stores / GROUP;  // as stamped
  const int producer = ((const short *)a.producer_of)[sm_id()];
  if (producer == -2) return;
  if (producer < 0) {
    if (threadIdx.x == 0) wait_for(&box->finished, 1, box, a.total_ns);
    return;
  }
  const bool storing = warp < a.warps;
  // Plus zero, which no compiler knows: of a constant address even the shuffle is folded, and the read moved before the stores.
  const u32 whole_warp = taken_mask(s.whole_warp) + ~*(volatile u32 *)&s.whole_warp;
#ifndef XSTAGE_WHOLE_BURST
  char *const window = (char *)a.data + (storing ? piece_of(a, producer, warp, 0, lane) : 0);
#endif

  for (u32 rep = 0; rep < a.repetitions; ++rep) {
    if (threadIdx.x == 0) {
      __threadfence();  // behind the CTA's barrier: what its other threads stored comes before this count
      atomicAdd(&box->arrived, 1u);
      s.run = wait_for(&box->go_round, rep + 1, box, a.timeout_ns);
      s.go_ns = *(volatile u64 *)&box->go_ns;
      s.lag = ((const Delay *)a.delays)[rep].lag_cycles;
    }
    __syncthreads();
    if (!s.run) return;
    if (storing) {
      const u64 go = s.go_ns;
      const u32 lag = s.lag;
      u32 reusable = 0, completed = 0;
#ifdef XSTAGE_WHOLE_BURST
      u64 start, end;
      whole_burst(a, memory, rep, producer, warp, lane, go, whole_warp, start, end, reusable, completed);
#else
      const Pattern p = pattern_of(tag_of(a, rep), producer, warp, lane);
      u32 *const progress = s.progress + warp * groups, *const last = s.progress + PROGRESS;
      char *to = window;
      u32 x = p.x;
      while (global_timer_ns() < go) {
      }
      const u64 start = sm_clock();
#pragma unroll 1
      for (u32 g = 0; g < groups; ++g) {
#pragma unroll
        for (u32 i = 0; i < GROUP; ++i) st_v4(to + i * WARP_STORE_BYTES, x, p.y, p.z, p.w);
        if (lane == 0 && progress + g < last) *(progress + g) = (u32)(sm_clock() - start);
        ++x;
        to += GROUP_BYTES;
      }
      const u64 end = clock_when_taken(whole_warp);
#endif
      if (lane == 0) {
        s.start[warp] = start;
        s.end[warp] = end;
        s.reusable[warp] = reusable;
        s.completed[warp] = completed;
        s.publish[warp] = 0;
        if (a.publish) {  // publishing from the storing warp, `lag` cycles after its last store
          while (sm_clock() - end < lag) {
          }
          u64 before, after;
          send(a.method, &there->sink[producer * MAX_WARPS + warp], rep + 1, before, after);
          s.publish[warp] = (u32)(after - before);
        }
      }
      __syncwarp();
      __threadfence_system();
    }
    __syncthreads();
    if (threadIdx.x == 0) {
      IssueStamp out = {0xffffffffu, 0, 0, (u32)(global_timer_ns() - s.go_ns), 0, 0};
      const u64 now = sm_clock();  // both clocks at one moment: they tie this SM's stamps to the common timer
      u64 first = ~0ull, last = 0;
      for (u32 w = 0; w < a.warps; ++w) {
        first = min(first, s.start[w]);
        last = max(last, s.end[w]);
        out.publish = max(out.publish, s.publish[w]);
        if (s.reusable[w]) out.reusable = max(out.reusable, (u32)(s.end[w] - first) + s.reusable[w]);
        if (s.completed[w]) out.completed = max(out.completed, (u32)(s.end[w] - first) + s.completed[w]);
      }
      if (out.reusable) out.reusable -= (u32)(last - first);  // the last warp's end, as everywhere
      if (out.completed) out.completed -= (u32)(last - first);
      out.start_before = (u32)(now - first);
      out.issue = (u32)(last - first);
      ((IssueStamp *)a.issue_stamps)[rep * a.producers + producer] = out;
    }
#ifndef XSTAGE_WHOLE_BURST
    for (u32 i = threadIdx.x; i < min(groups * a.warps, PROGRESS); i += blockDim.x)
      ((u32 *)a.progress)[(u64)(rep * a.producers + producer) * PROGRESS + i] = s.progress[i];
#endif
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(&box->arrived, 1u);
  }
}

// ---- the idle SM of the source: flags, messages, and the stamps of every answer ----

static __device__ bool ping(const Plan &a, u32 method, u32 sequence, u64 go, PingStamp *out) {
  SourceBox *const box = (SourceBox *)a.source_box;
  DestinationBox *const there = (DestinationBox *)a.destination_box;
  const u64 at = global_timer_ns(), give_up = at + a.timeout_ns;
  u64 before, after;
  send(method, &there->ping, sequence, before, after);
  u64 seen = after;
  while (load(&box->pong) != sequence) {
    if (global_timer_ns() > give_up) {
      store(&box->abort, 1);
      return false;
    }
  }
  seen = sm_clock();
  *out = {go ? (u32)(at - go) : NEVER, (u32)(after - before), 0, (u32)(seen - before)};
  return true;
}

extern "C" __global__ void __launch_bounds__(1024, 1) xstage_vis_probe(const __grid_constant__ Plan a) {
  __shared__ Sending s;
  SourceBox *const box = (SourceBox *)a.source_box;
  DestinationBox *const there = (DestinationBox *)a.destination_box;
  const u32 tid = threadIdx.x, slots = a.idle_pings + a.pings;
  const bool messages = a.mode == MESSAGE, talking = messages ? tid < a.message_warps * 32 : tid == 0;
  u32 sequence = 0;

  for (u32 rep = 0; rep < a.repetitions; ++rep) {
    PingStamp *out = (PingStamp *)a.ping_stamps + rep * slots;
    if (tid == 0) {
      s.run = wait_for(&box->arrived, (rep + 1) * a.producers, box, a.timeout_ns) && wait_for(&box->ready, rep + 1, box, a.timeout_ns);
      __threadfence_system();  // the second word is the other GPU's
    }
    __syncthreads();
    bool ok = s.run;
    if (talking && ok) {
      for (u32 i = 0; ok && i < a.idle_pings; ++i, ++sequence)
        ok = messages ? send_message(a, s, sequence + 1, 0, out + i) : ping(a, a.mode == PING && i % 2 ? a.method : RELAXED, sequence + 1, 0, out + i);
    }
    __syncthreads();
    if (tid == 0) {
      s.go_ns = global_timer_ns() + LEAD_NS;
      *(volatile u64 *)&box->go_ns = s.go_ns;
      __threadfence();
      store(&box->go_round, rep + 1);
    }
    __syncthreads();
    if (tid == 0 && rep == 0) {
      box->clock[0] = sm_clock();
      box->timer_ns[0] = global_timer_ns();
    }
    const u64 go = s.go_ns;
    const u32 everyone = (rep + 1) * a.producers;
    if (a.mode == CURVE && tid >= 32 && tid < 32 + a.streams) {
      const u32 stream = tid - 32, all = a.stores / a.stride, zero = rep * all;
      u32 *const curve = (u32 *)a.curve + (u64)(rep * a.streams + stream) * all;
      u32 seen = 0;
      const u64 give_up = go + a.timeout_ns;
      while (seen < all) {
        const u32 now_seen = load(&box->echo[stream]) - zero;
        const u64 now = global_timer_ns();
        if (now_seen <= all)  // not yet touched in this repetition: wraps to a large number
          for (; seen < now_seen; ++seen) curve[seen] = (u32)(now - go);
        if (now > give_up) {
          store(&box->abort, 1);
          break;
        }
      }
    }
    if (a.mode != CURVE && talking && ok) {
      const u32 delay = ((const Delay *)a.delays)[rep].ping_ns;
      while (global_timer_ns() < go + delay) {
      }
      for (u32 i = 0; ok && i < a.pings; ++i, ++sequence) {
        PingStamp *const to = out + a.idle_pings + i;
        ok = messages ? send_message(a, s, sequence + 1, go, to) : ping(a, a.method, sequence + 1, go, to);
        // Until every producer has drained. One thread decides for all.
        if (messages) {
          if (tid == 0) s.more = load(&box->arrived) < everyone + a.producers || a.producers == 0;
          barrier(1, a.message_warps * 32);
          if (!s.more) {
            ++sequence;
            break;
          }
        } else if (a.producers && load(&box->arrived) >= everyone + a.producers) {
          ++sequence;
          break;
        }
      }
    }
    __syncthreads();
    if (tid == 0) {
      s.run = ok && wait_for(&box->arrived, everyone + a.producers, box, a.timeout_ns);
      __threadfence_system();
      store(&there->command, s.run ? rep + 1 : STOP);
    }
    __syncthreads();
    if (!s.run) break;
  }
  if (tid == 0) {
    box->clock[1] = sm_clock();
    box->timer_ns[1] = global_timer_ns();
    box->prober = sm_id();
    __threadfence();
    store(&box->finished, 1);
    store(&there->command, STOP);
  }
}

// ---- the destination: sees words arrive in its own memory and answers ----

// Every byte that the producers stored in this repetition, read on the destination; a group of loads in flight per warp. Slots that are added
// to are zeroed for the next one.
static __device__ void verify(const Plan &a, u32 rep, Found *found) {
  const u32 lane = threadIdx.x % 32, groups = a.stores / GROUP;
  for (u32 i = threadIdx.x / 32; i < a.producers * a.warps * groups; i += blockDim.x / 32) {
    const u32 group = i % groups, warp = i / groups % a.warps, producer = i / groups / a.warps;
#pragma unroll 1
    for (u32 piece = lane; piece < PIECES; piece += 32) {
      u32 have[GROUP][PIECE_WORDS];
#pragma unroll
      for (u32 k = 0; k < GROUP; ++k) load_piece((const char *)a.data + piece_of(a, producer, warp, group * GROUP + k, piece), have[k]);
#pragma unroll
      for (u32 k = 0; k < GROUP; ++k) {
        const u32 store = group * GROUP + k;
        const Pattern p = pattern_of(tag_of(a, rep), producer, warp, origin(store, piece));
        bool right = true;
#pragma unroll
        for (u32 i = 0; i < PIECE_WORDS; ++i) right = right && have[k][i] == expected_word(p, i, store, 1);
        if (!right) atomicAdd(&found->wrong, 1ull);
        if (XSTAGE_REDUCES) fill_piece((char *)a.data + piece_of(a, producer, warp, store, piece), 0);
      }
    }
  }
}

// Stream t is warp t % warps of producer t / warps. Its markers are the first word of the last piece of every stride-th operation.
static __device__ void watch(const Plan &a, Receiving &s, u32 stream, u32 rep, SourceBox *back) {
  const u32 all = a.stores / a.stride, tag = tag_of(a, rep);
  const u32 producer = stream / a.warps, warp = stream % a.warps;
  for (u32 seen = 0; seen < all && !*(volatile u32 *)&s.stop;) {
    u32 have[BATCH], n = 0;
#pragma unroll
    for (u32 k = 0; k < BATCH; ++k) 
      have[k] = load((const u32 *)((const char *)a.data + piece_of(a, producer, warp, (min(seen + k, all - 1) + 1) * a.stride - 1, PIECES - 1)));
#pragma unroll
    for (u32 k = 0; k < BATCH; ++k) {
      const u32 store = (seen + k + 1) * a.stride - 1;
      n += n == k && seen + k < all && have[k] == expected_word(pattern_of(tag, producer, warp, origin(store, PIECES - 1)), 0, store, 1);
    }
    if (n == 0) continue;
    seen += n;
    store(&back->echo[stream], rep * all + seen);
  }
}

extern "C" __global__ void __launch_bounds__(1024, 1) xstage_vis_respond(const __grid_constant__ Plan a) {
  __shared__ Receiving s;
  SourceBox *const back = (SourceBox *)a.source_box;
  DestinationBox *const box = (DestinationBox *)a.destination_box;
  Found *const found = (Found *)a.found;
  const u32 tid = threadIdx.x;
  u32 last = 0, sequence = 0;
  for (u32 rep = 0; rep < a.repetitions; ++rep) {
    if (tid == 0) {
      s.stop = 0;
      __threadfence_system();  // behind the barrier: the whole CTA has checked the last repetition's bytes, and zeroed what is added to
      store(&back->ready, rep + 1);
    }
    __syncthreads();
    if (tid == 0) {
      const u64 give_up = global_timer_ns() + a.timeout_ns;
      s.run = 1;
      while (true) {
        u32 ping, command;
        asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];" : "=r"(ping), "=r"(command) : "l"(&box->ping) : "memory");
        if (ping != last && a.mode != MESSAGE) {
          store(&back->pong, ping);
          last = ping;
        }
        if (command > rep) {
          s.run = command != STOP || rep + 1 == a.repetitions;  // the last command may already have been overwritten by the end
          break;
        }
        if (global_timer_ns() > give_up) {
          s.run = 0;
          atomicAdd(&found->timeouts, 1ull);
          break;
        }
      }
      *(volatile u32 *)&s.stop = 1;
      __threadfence_system();  // between the command and the reads of what it says is there
    }
    if (a.mode == CURVE && tid >= 32 && tid < 32 + a.streams) watch(a, s, tid - 32, rep, back);
    if (a.mode == MESSAGE && tid >= 32 && tid < 32 + a.message_warps * 32)
      while (receive_message(a, s, sequence + 1, back, box, found)) ++sequence;
    __syncthreads();
    if (!s.run) return;
    verify(a, rep, found);
    __syncthreads();
  }
}
