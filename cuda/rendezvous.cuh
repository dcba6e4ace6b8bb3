// All GPUs of a scene start together. %globaltimer is not comparable between GPUs, so the first GPU measures the offset of every
// other one's timer by ping-pong through peer memory, right before each repetition, and hands out one start time in each
// timer's own terms. The true offset lies within half a round trip of the measured one: that is the bound on the skew.
#pragma once

#include "stamps.cuh"

static constexpr u32 MAX_RANKS = 16;
static constexpr u32 PINGS = 12;
static constexpr u64 LOW48 = (1ull << 48) - 1, GO_BIT = 1ull << 48;

struct Mail {  // one per GPU, in its own memory; mirrored by MAIL in xstage_bench/device/cuda/scene.py
  u64 command, arrive[16], answer[16];
};
struct Control {  // mirrored by SCENE_CONTROL; zeroed before each launch
  u32 arrived, released, abort, pad;
  u64 start_ns;
};
struct Repetition {  // mirrored by REPETITION
  u32 state, mismatches, offset, expected, found, pad;
  u64 clock, timer_ns, end_clock, end_timer_ns;
  u64 peer_offset_ns[16], round_trip_ns[16];
};

// One 8-byte store carries number, kind and time, so that no reader sees one without the other.
static __device__ __forceinline__ u64 letter(u64 number, u64 kind, u64 time_ns) { return number << 49 | kind | (time_ns & LOW48); }
static __device__ __forceinline__ u64 number_of(u64 letter) { return letter >> 49; }

// The full time of which 48 bits were sent: the one nearest to now.
static __device__ __forceinline__ u64 full_time(u64 letter, u64 now) {
  const long long away = (long long)((letter - now) << 16) >> 16;
  return now + away;
}

static __device__ __forceinline__ u64 peek(const u64 *word) { return *(const volatile u64 *)word; }
static __device__ __forceinline__ void post(u64 *word, u64 value) { *(volatile u64 *)word = value; }

// The first GPU: wait for all, measure their timers, name the start. False when a wait timed out.
static __device__ bool conduct(Mail *const *mail, u32 ranks, u64 round, u64 &sent, u64 lead_ns, u64 give_up, u64 &start_ns, Repetition *out) {
  for (u32 g = 1; g < ranks; ++g)
    while (peek(&mail[0]->arrive[g]) < round + 1)
      if (global_timer_ns() > give_up) return false;
  for (u32 g = 1; g < ranks; ++g) {
    u64 best = ~0ull, offset = 0;
#pragma unroll 1
    for (u32 i = 0; i < PINGS; ++i) {
      const u64 number = ++sent & 0x7fff, asked = global_timer_ns();
      post(&mail[g]->command, letter(number, 0, 0));
      u64 answer;
      while (number_of(answer = peek(&mail[0]->answer[g])) != number)
        if (global_timer_ns() > give_up) return false;
      const u64 now = global_timer_ns(), trip = now - asked;
      if (trip < best) {
        best = trip;
        offset = full_time(answer, now) - (asked + trip / 2);
      }
    }
    out->peer_offset_ns[g] = offset;
    out->round_trip_ns[g] = best;
  }
  start_ns = global_timer_ns() + lead_ns;
  for (u32 g = 1; g < ranks; ++g) post(&mail[g]->command, letter(++sent & 0x7fff, GO_BIT, start_ns + out->peer_offset_ns[g]));
  return true;
}

// Every other GPU: say that all its CTAs are here, answer pings, wait for the start.
static __device__ bool follow(Mail *const *mail, u32 rank, u64 round, u64 &seen, u64 give_up, u64 &start_ns) {
  post(&mail[0]->arrive[rank], round + 1);
  while (true) {
    const u64 word = peek(&mail[rank]->command), now = global_timer_ns();
    if (number_of(word) != seen) {
      seen = number_of(word);
      if (word & GO_BIT) {
        start_ns = full_time(word & LOW48, now);
        return true;
      }
      post(&mail[0]->answer[rank], letter(seen, 0, now));
    }
    if (now > give_up) return false;
  }
}

// Thread 0 of every CTA of every GPU: all meet, and get the common start in their own GPU's timer. The stage is empty here, since every
// storing warp has fenced. False when a wait timed out.
static __device__ bool gather(Control *control, Mail *const *mail, u32 rank, u32 ranks, u32 round, u64 &letters, u64 lead_ns, u64 timeout_ns,
                              Repetition *out, u64 &start_ns) {
  volatile Control *c = control;
  const u64 give_up = global_timer_ns() + timeout_ns;
  bool ok = true;
  __threadfence();
  atomicAdd(&control->arrived, 1u);
  if (blockIdx.x == 0) {
    while (ok && c->arrived < (round + 1) * gridDim.x) ok = !c->abort && global_timer_ns() < give_up;
    u64 start = 0;
    if (ok && ranks == 1) start = global_timer_ns() + lead_ns;
    else if (ok) ok = rank == 0 ? conduct(mail, ranks, round, letters, lead_ns, give_up, start, out) : follow(mail, rank, round, letters, give_up, start);
    if (!ok) c->abort = 1;
    c->start_ns = start;
    __threadfence();
    c->released = round + 1;
  }
  while (c->released < round + 1) {
    if (c->abort || global_timer_ns() > give_up) {
      c->abort = 1;
      break;
    }
    __nanosleep(64);
  }
  __threadfence();
  start_ns = c->start_ns;
  return !c->abort;
}
