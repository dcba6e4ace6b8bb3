// What is stored, so that it can be checked.
//
// Stores: word 0 counts the groups of warp-stores of one launch item, so it differs for every burst and repetition; the other words name the
// item, the producer, the warp and the lane (4-byte stores carry both in their one word). A store that was dropped, doubled or sent elsewhere
// leaves bytes that cannot be mistaken for the right ones, but for two stores of one group that change places. The stores of a group are of
// the same four registers: of copies, the compiler would make one between two stores, and wait there (issue.cuh). Bulk copies: each reads its source buffer from another place than the one
// before it. Reductions: small whole numbers into zeroed slots, so that a sum counts its hits exactly.
#pragma once

#include "layouts.cuh"

struct Pattern {
  u32 x, y, z, w;
};

// Places in the source that a bulk copy may start from; odd, so that the wrap of the window meets another. They are 128 bytes apart: a source
// that is aligned to less makes more packets of the same bytes (results/h200-x2/flavours).
static constexpr u32 BULK_SOURCES = XSTAGE_KIND == XSTAGE_BULK || XSTAGE_IS_TENSOR ? 13 : 1;
static constexpr u32 BULK_STEP_PIECES = 8;

// Pattern of group 0; group j has x + j. For a bulk copy `lane` is the 16-byte word of the source buffer.
static __device__ __forceinline__ Pattern pattern_of(u32 tag, u32 producer, u32 warp, u32 lane) {
  Pattern p;
#if XSTAGE_REDUCES
  const u32 hash = (tag ^ (producer << 16 | warp << 8 | lane)) * 0x9E3779B9u >> 25;
#ifdef XSTAGE_BF16
  p.x = hash & 1 ? 0x40004000u : 0x3F803F80u;  // 2.0 or 1.0, twice: sums are exact to 256
#else
  p.x = __float_as_uint(1.0f + (float)(hash & 15));  // exact to 2^24
#endif
  p.y = p.z = p.w = p.x;
#else
  p.x = tag;
  p.y = tag ^ (producer << 16 | warp << 8 | lane);
  p.z = producer * 0x9E3779B9u + lane;
  p.w = ~tag;
  if (PIECE_WORDS == 1) p.x = tag + (producer << 16 | warp << 8 | lane) * 0x9E3779B1u;
#endif
  return p;
}

// Word `k` of a piece after its last store, number `store` of the warp, or after `hits` reductions.
static __device__ __forceinline__ u32 expected_word(Pattern p, u32 k, u32 store, u32 hits) {
#if XSTAGE_REDUCES
#ifdef XSTAGE_BF16
  const u32 sum = __float_as_uint(__uint_as_float(p.x & 0xffff0000u) * (float)hits);
  return sum | sum >> 16;
#else
  return __float_as_uint(__uint_as_float(p.x) * (float)hits);
#endif
#else
  const u32 counted = XSTAGE_IS_BULK ? 0 : store / GROUP;  // a bulk copy's words are those of its source
  return k % 4 == 0 ? p.x + counted : k % 4 == 1 ? p.y : k % 4 == 2 ? p.z : p.w;
#endif
}

// The word of the source buffer that piece `piece` of bulk operation `store` was copied from; a lane for stores. A tensor store unswizzles:
// in each line of 128 bytes of shared memory, the 16-byte words are permuted by the three address bits above the line.
static __device__ __forceinline__ u32 origin(u32 store, u32 piece) {
#if XSTAGE_IS_TENSOR
  const u32 line = store % BULK_SOURCES + piece / 8;
  return line * 8 + (piece % 8 ^ line % 8);
#else
  return XSTAGE_IS_BULK ? store % BULK_SOURCES * BULK_STEP_PIECES + piece : piece;
#endif
}

static __device__ __forceinline__ void load_piece(const char *at, u32 (&have)[PIECE_WORDS]) {
  if constexpr (PIECE_WORDS == 1) {
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(have[0]) : "l"(at) : "memory");
  } else if constexpr (PIECE_WORDS == 2) {
    asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(have[0]), "=r"(have[1]) : "l"(at) : "memory");
  } else {
#pragma unroll
    for (u32 k = 0; k < PIECE_WORDS; k += 4)
      asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(have[k]), "=r"(have[k + 1]), "=r"(have[k + 2]), "=r"(have[k + 3])
                   : "l"(at + 4 * k)
                   : "memory");
  }
}

static __device__ __forceinline__ void fill_piece(char *at, u32 word) {
#pragma unroll
  for (u32 k = 0; k < PIECE_WORDS; ++k) asm volatile("st.volatile.global.u32 [%0], %1;" ::"l"(at + 4 * k), "r"(word) : "memory");
}
