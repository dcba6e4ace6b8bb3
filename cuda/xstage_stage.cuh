// One stage of K producers as a kernel or a host scheduler uses it: T0, R and Q with their intervals, and what follows for one more burst.
// The same numbers and functions as xstage_bench/model/stage.py; `xstage export --format cuh` writes this text and a model's numbers into one
// file that needs no other. C++17; no include, so that NVRTC takes it as it is.
//
// Sizes of bursts are bytes per producer; backlog and capacity are of all producers together. Times are SM cycles, rates GB/s (10^9).
#ifndef XSTAGE_STAGE
#define XSTAGE_STAGE

#ifndef XSTAGE_BOTH
#ifdef __CUDACC__
#define XSTAGE_BOTH __host__ __device__
#else
#define XSTAGE_BOTH
#endif
#endif

namespace xstage {

// `known` is false where the data does not determine the number; value, low and high are then 0.
struct Number {
  float value, low, high;
  bool known;
};

struct Stage {
  int producers, warps, warp_store_bytes;
  float sm_clock_mhz;
  int reference_bytes;  // burst per producer at which t0_cycles stands
  bool producer_limited;  // R is the producers' own rate, not the link's
  Number t0_cycles, drain_gb_per_s, capacity_bytes;  // as fitted
  float issue_base_cycles, issue_cycles_per_store;   // T0 of a burst of n warp-stores per warp: base + n * cycles
  float rate_gb_per_s;                               // at which the stage drains; 0: none is known
  float stalled_gb_per_s, stalled_capacity_bytes;    // (V - capacity)/rate, the issue time of a stalled burst; rate 0: nothing stalls
};

constexpr float stalled_above = 1.1f;  // times T0: what counts as a stall

XSTAGE_BOTH constexpr float greater(float a, float b) { return a > b ? a : b; }
XSTAGE_BOTH constexpr float per_cycle(const Stage &s, float gb_per_s) { return gb_per_s * 1e3f / s.sm_clock_mhz; }
// Its inverse is a constant where the stage is one: no division remains in a kernel.
XSTAGE_BOTH constexpr float cycles_per_byte(const Stage &s, float gb_per_s) { return 1.0f / per_cycle(s, gb_per_s); }
XSTAGE_BOTH constexpr int step_bytes(const Stage &s) { return s.warps * s.warp_store_bytes; }

// T0 of this burst.
XSTAGE_BOTH constexpr float free_cycles(const Stage &s, float burst_bytes) {
  return burst_bytes > 0 ? s.issue_base_cycles + burst_bytes * (s.issue_cycles_per_store / step_bytes(s)) : 0.0f;
}

// Issue time, mean over producers, of a burst that finds this backlog: max(T0, (V + q - Q)/R).
XSTAGE_BOTH constexpr float issue_cycles(const Stage &s, float burst_bytes, float backlog_bytes = 0.0f) {
  const float free = free_cycles(s, burst_bytes);
  if (s.stalled_gb_per_s <= 0 || burst_bytes <= 0) return free;
  return greater(free, (burst_bytes * s.producers + backlog_bytes - s.stalled_capacity_bytes) * cycles_per_byte(s, s.stalled_gb_per_s));
}

XSTAGE_BOTH constexpr float stall_cycles(const Stage &s, float burst_bytes, float backlog_bytes = 0.0f) {
  return issue_cycles(s, burst_bytes, backlog_bytes) - free_cycles(s, burst_bytes);
}

XSTAGE_BOTH constexpr bool would_stall(const Stage &s, float burst_bytes, float backlog_bytes = 0.0f) {
  return issue_cycles(s, burst_bytes, backlog_bytes) > stalled_above * free_cycles(s, burst_bytes);
}

// V/R; 0 where no rate is known.
XSTAGE_BOTH constexpr float drain_cycles(const Stage &s, float burst_bytes) {
  return s.rate_gb_per_s > 0 ? burst_bytes * s.producers * cycles_per_byte(s, s.rate_gb_per_s) : 0.0f;
}

// Shortest gap at which periodic bursts cost no more than T0: [V/R - T0]+.
XSTAGE_BOTH constexpr float recovery_gap_cycles(const Stage &s, float burst_bytes) {
  return greater(0.0f, drain_cycles(s, burst_bytes) - free_cycles(s, burst_bytes));
}

// Steady period of such bursts: max(T0 + G, V/R).
XSTAGE_BOTH constexpr float period_cycles(const Stage &s, float burst_bytes, float gap_cycles) {
  return greater(free_cycles(s, burst_bytes) + gap_cycles, drain_cycles(s, burst_bytes));
}

// Backlog `cycles` after a burst began that found this one.
XSTAGE_BOTH constexpr float backlog_after(const Stage &s, float backlog_bytes, float burst_bytes, float cycles) {
  if (s.rate_gb_per_s <= 0) return 0.0f;
  return greater(0.0f, backlog_bytes + burst_bytes * s.producers - per_cycle(s, s.rate_gb_per_s) * cycles);
}

constexpr int any_size = 0x7fffffff;  // no burst stalls

// Most whole steps n with n steps of all producers <= room + rate * n * (cycles per store), in bytes per producer.
XSTAGE_BOTH constexpr int whole_steps(const Stage &s, float room, float rate) {
  const float each = (float)s.producers * step_bytes(s) - rate * s.issue_cycles_per_store;
  if (each <= 0) return any_size;
  return room > 0 ? (int)(room / each) * step_bytes(s) : 0;
}

// Largest burst that does not stall behind this backlog.
XSTAGE_BOTH constexpr int largest_free_burst_bytes(const Stage &s, float backlog_bytes = 0.0f) {
  if (s.stalled_gb_per_s <= 0) return any_size;
  const float rate = per_cycle(s, s.stalled_gb_per_s);
  return whole_steps(s, s.stalled_capacity_bytes + rate * s.issue_base_cycles - backlog_bytes, rate);
}

// Largest periodic burst that does not stall with this gap: V <= R (T0 + G), and one alone fits.
XSTAGE_BOTH constexpr int largest_steady_burst_bytes(const Stage &s, float gap_cycles) {
  const int alone = largest_free_burst_bytes(s);
  if (s.rate_gb_per_s <= 0) return alone;
  const float rate = per_cycle(s, s.rate_gb_per_s);
  const int steady = whole_steps(s, rate * (s.issue_base_cycles + gap_cycles), rate);
  return steady < alone ? steady : alone;
}

XSTAGE_BOTH constexpr Number scaled(Number n, float factor) { return Number{n.value * factor, n.low * factor, n.high * factor, n.known}; }

// The same stage with another number of producers: Q grows with them, and R too where they limit it. Good near the K of the fit.
XSTAGE_BOTH constexpr Stage with_producers(Stage s, int producers) {
  const float scale = (float)producers / s.producers, rate = s.producer_limited ? scale : 1.0f;
  s.producers = producers;
  s.drain_gb_per_s = scaled(s.drain_gb_per_s, rate);
  s.capacity_bytes = scaled(s.capacity_bytes, scale);
  s.rate_gb_per_s *= rate;
  s.stalled_gb_per_s *= rate;
  s.stalled_capacity_bytes *= scale;
  return s;
}

// The same stage at another SM clock: tensor-core work lowers it, and a slower SM sees a faster link.
XSTAGE_BOTH constexpr Stage at_clock(Stage s, float sm_clock_mhz) {
  s.sm_clock_mhz = sm_clock_mhz;
  return s;
}

XSTAGE_BOTH constexpr float apart(int a, int b) { return a > b ? (float)a / b : (float)b / a; }

// The fitted stage nearest to K producers with W warps (first W, then K), moved to K. Its `warps` is that of the fit.
template <int N>
XSTAGE_BOTH constexpr Stage nearest(const Stage (&table)[N], int producers, int warps) {
  int best = 0;
  for (int i = 1; i < N; ++i) {
    const float w = apart(table[i].warps, warps), b = apart(table[best].warps, warps);
    if (w < b || (w == b && apart(table[i].producers, producers) < apart(table[best].producers, producers))) best = i;
  }
  return with_producers(table[best], producers);
}

}  // namespace xstage
#endif
