// Would this burst stall, and would it stall less later? A producer's own estimate of its backlog: bytes noted, clock read, drain assumed. For a kernel of your own; include a
// header of `xstage export --format cuh` first, or xstage_stage.cuh.
//
//   constexpr xstage::Stage stage = xstage::pair_0_1_st_v4::stage(132, 4);  // in the kernel; 132 producers store at the same time, 4 warps each
//   auto pacer = xstage::Pacer::start(stage);
//   ...
//   if (ready && !pacer.better_later(32768)) {
//     pacer.note(32768);
//     store_tile();       // 32768 bytes of this producer, all its warps together
//     pacer.settle();     // optional: corrects the estimate by what the burst took
//   } else {
//     compute_tile();
//   }
//
// What is kept is the time at which all that was noted will have drained, if each of the K producers has its K-th part of R: a noted burst moves it
// on by its bytes, the clock catches up with it. It is one register in one thread; every producer asks for itself and no memory is touched. With
// a constant stage and constant sizes a question is a clock read, an addition and a comparison.
//
// Clocks are the low 32 bits of the SM's; they wrap every 2.1 s. An estimate further ahead than `horizon` is such a wrap and counts as drained.
#ifndef XSTAGE_PACER
#define XSTAGE_PACER

#ifndef XSTAGE_STAGE
#include "xstage_stage.cuh"
#endif

namespace xstage {

class Pacer {
 public:
  static constexpr unsigned horizon = 1u << 26;  // 34 ms at 2 GHz: 12 GB of a 370 GB/s link

  // `stage` is that of the producers that store at the same time, `now` the clock: nothing is outstanding. `free_scale`: how many times its T0 a burst takes in your loop when nothing holds
  // it back (the calibration's loop does nothing but store); it decides what `settle` takes for a stall.
  XSTAGE_BOTH constexpr Pacer(const Stage &stage, unsigned now, float free_scale = 1.0f)
      : stage_(stage), free_scale_(free_scale), drained_at_(now), begun_(now), free_(0) {}

  // How far ahead of the clock the estimate may be for this burst not to stall: (Q + 1.1 T0 R - V)/R. Negative: it stalls at any time.
  XSTAGE_BOTH constexpr int room_cycles(unsigned burst_bytes) const {
    if (stage_.stalled_gb_per_s <= 0) return (int)horizon;
    const float issued = stalled_above * free_cycles(stage_, (float)burst_bytes) * per_cycle(stage_, stage_.stalled_gb_per_s);
    const float room = stage_.stalled_capacity_bytes + issued - (float)burst_bytes * stage_.producers;
    return (int)(room * cycles_per_byte(stage_, stage_.rate_gb_per_s)) - (room < 0);
  }

  XSTAGE_BOTH constexpr bool would_stall(unsigned burst_bytes, unsigned now) const {
    const int room = room_cycles(burst_bytes);
    return room < 0 || (room < (int)horizon && drained_at_ - now - (unsigned)(room + 1) < horizon - (unsigned)(room + 1));
  }

  // Before the first store of a burst.
  XSTAGE_BOTH constexpr void note(unsigned burst_bytes, unsigned now) {
    const unsigned from = drained_at_ - now < horizon ? drained_at_ : now;
    drained_at_ = from + (unsigned)(drain_cycles(stage_, (float)burst_bytes) + 0.5f);
    begun_ = now;
    free_ = (unsigned)(stall_seen * free_scale_ * free_cycles(stage_, (float)burst_bytes)) + overhead_cycles;
  }

  // After its last store. A burst that took longer than its T0 has filled what this producer may have outstanding: that is then its backlog, whatever
  // was assumed. One that did not stall has left room.
  XSTAGE_BOTH constexpr void settle(unsigned now) {
    const unsigned full = full_cycles(), most = (unsigned)(full_cycles() * left_at_most);
    const unsigned ahead = drained_at_ - now;
    if (now - begun_ > free_)
      drained_at_ = now + full;
    else if (ahead < horizon && ahead > most)
      drained_at_ = now + most;
  }

  // Bytes of this producer that are assumed not to have drained.
  XSTAGE_BOTH constexpr unsigned backlog_bytes(unsigned now) const {
    const unsigned ahead = drained_at_ - now < horizon ? drained_at_ - now : 0;
    return stage_.rate_gb_per_s > 0 ? (unsigned)(ahead * per_cycle(stage_, stage_.rate_gb_per_s) / stage_.producers) : 0;
  }

  // Would it stall less if it came later? As `would_stall` for a burst that fits into what the stage takes in; one that does not stalls at any time,
  // and least once all before it has drained. This is what to ask when there is something else to do.
  XSTAGE_BOTH constexpr bool better_later(unsigned burst_bytes, unsigned now) const {
    const int room = room_cycles(burst_bytes);
    const unsigned most = room > 0 ? (unsigned)room : 0;
    return most < horizon && drained_at_ - now - (most + 1) < horizon - (most + 1);
  }

  // For how long.
  XSTAGE_BOTH constexpr unsigned wait_cycles(unsigned burst_bytes, unsigned now) const {
    const int room = room_cycles(burst_bytes);
    return better_later(burst_bytes, now) ? drained_at_ - now - (room > 0 ? (unsigned)room : 0) : 0;
  }

#ifdef __CUDACC__
  static __device__ __forceinline__ unsigned clock() {
    unsigned now;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(now)::"memory");
    return now;
  }
  static __device__ __forceinline__ Pacer start(const Stage &stage, float free_scale = 1.0f) { return Pacer(stage, clock(), free_scale); }
  __device__ __forceinline__ bool would_stall(unsigned burst_bytes) const { return would_stall(burst_bytes, clock()); }
  __device__ __forceinline__ bool better_later(unsigned burst_bytes) const { return better_later(burst_bytes, clock()); }
  __device__ __forceinline__ void note(unsigned burst_bytes) { note(burst_bytes, clock()); }
  __device__ __forceinline__ void settle() { settle(clock()); }
  __device__ __forceinline__ unsigned backlog_bytes() const { return backlog_bytes(clock()); }
  __device__ __forceinline__ unsigned wait_cycles(unsigned burst_bytes) const { return wait_cycles(burst_bytes, clock()); }
#endif

 private:
  static constexpr float stall_seen = 1.3f;  // times T0, and these cycles of barriers and questions: what `settle` takes for a stall
  static constexpr unsigned overhead_cycles = 400;
  static constexpr float left_at_most = 0.8f;  // of Q, after a burst that did not stall; picked on recorded producers (results/h200-x2/pacer)

  // Time to drain all that the stage holds.
  XSTAGE_BOTH constexpr unsigned full_cycles() const {
    if (stage_.stalled_gb_per_s <= 0) return 0;
    return (unsigned)(stage_.stalled_capacity_bytes * cycles_per_byte(stage_, stage_.rate_gb_per_s));
  }

  Stage stage_;
  float free_scale_;
  unsigned drained_at_, begun_, free_;
};

}  // namespace xstage
#endif
