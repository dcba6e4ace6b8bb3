// Where a CTA's tasks come from when they are not a list that it is given. `Source` is what the load thread asks, `Turns` what the two warpgroups ask.
//
//   dynamic  one list for all CTAs and a counter: who is free claims the next task
//   paced    the CTA's own Linear-1 and Linear-2 tiles, each kind in its order; which kind comes next is decided while it runs
//
// The load thread decides, and hands the word to both warpgroups through a ring in shared memory: each must know how many
// stages the other one's tasks take. A word is handed on before its operands are brought and after those of all tasks before, so the warpgroups can
// finish all that lies before it whatever the load thread then waits for. Where another warp publishes, it reads the ring too.
//
// Why nothing waits for ever. Only a load thread waits for other CTAs, and only with a Linear-2 tile whose block is not ready; all that it took before
// will be finished. Dynamic: of all tiles that wait take the one that lies first in the list. The Linear-1 tiles of its block lie before it
// (check_lists in xstage_bench/fused/moe/order.py), so each was claimed, and by a CTA that executes its claims in the order of the list: it has come
// to that tile, or waits at one that lies before it, and there is none. A claim made ahead lies behind what its CTA waits with and changes nothing.
// Paced: a CTA waits only when it has brought all its Linear-1 tiles, so when all wait, every Linear-1 tile there is will be published.
#pragma once

#include "moe_plan.cuh"
#if XSTAGE_CLAIM == XSTAGE_CLAIM_PACED
#include "xstage_pacer.cuh"
#ifdef XSTAGE_PACED_STAGE_BYTES
static_assert(sizeof(xstage::Stage) == XSTAGE_PACED_STAGE_BYTES, "pacing.py differs");
#endif
#endif

#if XSTAGE_CLAIM != XSTAGE_CLAIM_STATIC

static constexpr u32 NO_TASK = 0xffffffffu;  // the word behind the last one: no layer has that tile

static __device__ __forceinline__ u32 handed(u32 base, u32 slot) { return base + HANDED_AT + 8 * slot; }
static __device__ __forceinline__ u32 handed_full(u32 base, u32 slot) { return base + HANDED_AT + 8 * (HANDED_SLOTS + slot); }
static __device__ __forceinline__ u32 handed_empty(u32 base, u32 slot) { return base + HANDED_AT + 8 * (2 * HANDED_SLOTS + slot); }

// One thread, before the CTA's first barrier.
static __device__ __forceinline__ void prepare_ring(u32 base) {
  for (u32 s = 0; s < HANDED_SLOTS; ++s) {
    barrier_init(handed_full(base, s), 1);
    barrier_init(handed_empty(base, s), GROUPS * GROUP_WARPS + (XSTAGE_PUBLISH == XSTAGE_PUBLISH_ELSEWHERE ? 1 : 0));
  }
}

class Hand {  // the load thread's side of the ring
 public:
  __device__ __forceinline__ explicit Hand(u32 base) : base_(base) {}
  __device__ __forceinline__ void on(u32 word, u32 position) {
    barrier_wait(handed_empty(base_, ring_.stage), ring_.parity ^ 1);
    asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(handed(base_, ring_.stage)), "r"(word), "r"(position) : "memory");
    barrier_arrive(handed_full(base_, ring_.stage));  // releases the word
    ring_.advance<HANDED_SLOTS>();
  }

 private:
  const u32 base_;
  Ring ring_;
};

class Handed {  // a reader's side
 public:
  u32 word, position;  // of the task, and where in the words of all CTAs

  __device__ __forceinline__ explicit Handed(u32 base) : base_(base) {}
  __device__ __forceinline__ void read() {
    barrier_wait(handed_full(base_, ring_.stage), ring_.parity);
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(word), "=r"(position) : "r"(handed(base_, ring_.stage)) : "memory");
  }
  // The slot may be written again; one thread of each warp that reads says so when the warp has read.
  __device__ __forceinline__ void leave(bool says) {
    if (says) barrier_arrive(handed_empty(base_, ring_.stage));
    ring_.advance<HANDED_SLOTS>();
  }

 private:
  const u32 base_;
  Ring ring_;
};

class Turns : public Handed {
 public:
  __device__ __forceinline__ Turns(const MoePlan &, u32 base) : Handed(base) {}
  __device__ __forceinline__ bool last(u32) const { return false; }
  // Go on to task i; false: there is none. By all threads of both groups. Whether a task is followed by another one is not known in time, so the turn is
  // always passed on, and taken once more at the end.
  __device__ __forceinline__ bool next(u32 i, u32 group, u32 lane) {
    read();
    __syncwarp();
    leave(lane == 0);
    if (word != NO_TASK) return true;
    if (i > 0 && (i & 1) == group) named_sync(TURN + group, GROUPS * WARPGROUP);  // the turn that the last task has passed on
    return false;
  }
};

#if XSTAGE_PUBLISH == XSTAGE_PUBLISH_ELSEWHERE
// As publish_behind in moe.cu. A fence covers all tiles that had been stored before it, also those whose words are read later.
static __device__ void publish_handed(const MoePlan &plan, u32 base) {
  Handed next(base);
  u32 even = 0, odd = 0;  // tasks of each group that lie before the last fence
  for (u32 i = 0;; ++i) {
    next.read();
    next.leave(true);
    if (next.word == NO_TASK) return;
    const Task task = task_of(next.word);
    if (task.second) continue;
    if ((i & 1 ? odd : even) <= i / 2) {
      const u64 give_up = global_timer_ns() + plan.timeout_ns;
      while (true) {
        asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(even) : "r"(base + STORED_AT) : "memory");
        asm volatile("ld.acquire.cta.shared::cta.u32 %0, [%1];" : "=r"(odd) : "r"(base + STORED_AT + 4) : "memory");
        if ((i & 1 ? odd : even) > i / 2) break;
        if (global_timer_ns() > give_up) fault();
        __nanosleep(100);
      }
      asm volatile("fence.acq_rel.gpu;" ::: "memory");
    }
    add_relaxed((u32 *)plan.ready + task.block);
  }
}
#endif

#if XSTAGE_CLAIM == XSTAGE_CLAIM_DYNAMIC

// A claim goes out with the first stage of the task before, and its word is read two stages later: neither is waited for while stages are full. No
// earlier, since what a CTA has claimed no other one can take at the end of the list.
class Source {
 public:
  static constexpr bool ready = false;  // it is not known whether the task's rows are there
  Task task;
  u32 expert;

  __device__ __forceinline__ Source(const MoePlan &plan, u32 base) : plan_(plan), hand_(base), count_(((const u32 *)plan.first)[gridDim.x]), known_(false) {
    claim();
  }
  // Go on to the next task; false: there is none.
  __device__ __forceinline__ bool next() {
    if (!known_) read();
    known_ = false;
    hand_.on(word_, position_);
    if (word_ == NO_TASK) return false;
    task = task_of(word_);
    expert = ((const u32 *)plan_.block_expert)[task.block];
    return true;
  }
  // The operands of this step have been asked for.
  __device__ __forceinline__ void brought(u32 step) {
    if (step == 0) claim();
    if (step == 2) read();
  }

 private:
  __device__ __forceinline__ void claim() { asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;" : "=r"(position_) : "l"(plan_.claimed) : "memory"); }
  __device__ __forceinline__ void read() {
    word_ = position_ < count_ ? ((const u32 *)plan_.tasks)[position_] : NO_TASK;
    known_ = true;
  }

  const MoePlan &plan_;
  Hand hand_;
  const u32 count_;
  u32 position_, word_;
  bool known_;
};

#else

// A Linear-2 tile comes next if its block is ready and the pacer does not expect it to stall less later, else a Linear-1 tile, which waits for no other tile.
// When none is left there is nothing to choose, and the Linear-2 tiles follow in order.
//
// It is decided, and the bytes are noted, when a tile's operands are brought, about two tile times before it stores. That is enough: the pacer
// compares bursts with the time between them, and all of them come later by the same two tile times, so the backlog that it has in mind now is the one
// that the tile will find. What differs is the tile times themselves, by less than one of them. What a burst took is not known here: nothing is settled.
class Source {
 public:
  Task task;
  u32 expert;
  bool ready;  // the task's rows are known to be there

  __device__ __forceinline__ Source(const MoePlan &plan, u32 base)
      : plan_(plan), hand_(base), pacer_(xstage::Pacer::start(*(const xstage::Stage *)plan.stage)), first_at_(((const u32 *)plan.first)[blockIdx.x]),
        middle_(((const u32 *)plan.seconds)[blockIdx.x]), second_at_(middle_), end_(((const u32 *)plan.first)[blockIdx.x + 1]) {
    first_word_ = word_at(first_at_, middle_);
    second_word_ = word_at(second_at_, end_);
  }
  __device__ __forceinline__ bool next() {
    bool second = first_word_ == NO_TASK;
    ready = false;
    if (!second && second_word_ != NO_TASK) {
      const u32 block = task_of(second_word_).block, bytes = ((const u32 *)plan_.remote_bytes)[block];
      ready = (int)(load_acquire((const u32 *)plan_.ready + block) - ready_count(plan_)) >= 0;
      second = ready && !pacer_.better_later(bytes);
      if (second) pacer_.note(bytes);
    }
    const u32 word = second ? second_word_ : first_word_;
    hand_.on(word, second ? second_at_ : first_at_);
    if (word == NO_TASK) return false;
    task = task_of(word);
    expert = ((const u32 *)plan_.block_expert)[task.block];
    // Asked for now, used when the task has been brought.
    if (second) second_word_ = word_at(++second_at_, end_);
    else first_word_ = word_at(++first_at_, middle_);
    return true;
  }
  __device__ __forceinline__ void brought(u32) {}

 private:
  __device__ __forceinline__ u32 word_at(u32 at, u32 end) const { return at < end ? ((const u32 *)plan_.tasks)[at] : NO_TASK; }

  const MoePlan &plan_;
  Hand hand_;
  xstage::Pacer pacer_;
  u32 first_at_, middle_, second_at_, end_, first_word_, second_word_;
};

#endif
#endif
