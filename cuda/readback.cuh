// Checks, outside every timed window, that the destination holds what was stored: by the source over the link after each segment, and by the
// destination GPU over its own memory once per pair and variant.
#pragma once

#include "pattern.cuh"

// What bursts [from, to) of an item put where: burst b starts at group first_group[b]; later groups wrap around in the window.
template <class Bursts>
static __device__ u32 stores_in_group(const Bursts &bursts, u32 to, u32 g) {
  u32 b = to - 1;
  while (bursts[b].first_group > g || bursts[b].stores == 0) --b;
  return min(GROUP, bursts[b].stores - (g - bursts[b].first_group) * GROUP);
}

// Read back over the link what this producer stored in bursts [from, to): each slot must hold the last operation sent to it, or the sum of
// all. All warps of the CTA share the work, a group of loads in flight each, or a long burst would take longer to check than to store.
template <class Shared, class Verdict>
static __device__ void read_back(const Shared &s, char *base, u32 window_bytes, u32 from, u32 to, Verdict *verdict) {
  const u32 lane = threadIdx.x % 32, warps = s.item.warps, groups = groups_per_warp(window_bytes, warps);
  const u32 begin = s.bursts[from].first_group, end = s.bursts[to - 1].first_group + (s.bursts[to - 1].stores + GROUP - 1) / GROUP;
  const u32 occupied = min(end - begin, groups);
  char *const window = base + (u64)s.producer * window_bytes;
#pragma unroll 1
  for (u32 t = threadIdx.x / 32; t < occupied * warps; t += blockDim.x / 32) {
    const u32 warp = t / occupied, g = end - 1 - t % occupied, slot = g % groups * GROUP;
#pragma unroll 1
    for (u32 piece = lane; piece < PIECES; piece += 32) {
      u32 have[GROUP][PIECE_WORDS];
#pragma unroll
      for (u32 i = 0; i < GROUP; ++i) load_piece(window + place(window_bytes, warp, warps, slot + i, piece), have[i]);
#pragma unroll
      for (u32 i = 0; i < GROUP; ++i) {
        u32 writer = g, hits = 0;  // a burst's last group may be partial: then the slot still holds a group one turn of the window earlier
        bool written = false;
        for (u32 w = g;; w -= groups) {
          if (i < stores_in_group(s.bursts, to, w)) {
            if (!written) writer = w;
            written = true;
            ++hits;
            if (!XSTAGE_REDUCES) break;
          }
          if (w < begin + groups) break;
        }
        if (!written) continue;
        const u32 store = writer * GROUP + i;
        const Pattern p = pattern_of(s.item.tag, s.producer, warp, origin(store, piece));
        u32 want = 0, found = 0, wrong = PIECE_WORDS;
#pragma unroll
        for (u32 k = PIECE_WORDS; k-- > 0;) {
          const u32 word = expected_word(p, k, store, hits);
          if (have[i][k] != word) want = word, found = have[i][k], wrong = k;
        }
        if (wrong < PIECE_WORDS && atomicAdd(&verdict->mismatches, 1u) == 0) {
          verdict->offset = (u32)(window + place(window_bytes, warp, warps, slot + i, piece) + 4 * wrong - base);
          verdict->expected = want;
          verdict->found = found;
        }
      }
    }
  }
}

#if XSTAGE_REDUCES
// Zero the slots that bursts [from, to) will add to.
template <class Shared>
static __device__ void zero_slots(const Shared &s, char *base, u32 window_bytes, u32 from, u32 to) {
  const u32 warps = s.item.warps, groups = groups_per_warp(window_bytes, warps);
  const u32 begin = s.bursts[from].first_group, end = s.bursts[to - 1].first_group + (s.bursts[to - 1].stores + GROUP - 1) / GROUP;
  const u32 occupied = min(end - begin, groups) * GROUP;
  char *const window = base + (u64)s.producer * window_bytes;
#pragma unroll 1
  for (u32 t = threadIdx.x / 32; t < occupied * warps; t += blockDim.x / 32)
    for (u32 piece = threadIdx.x % 32; piece < PIECES; piece += 32)
      fill_piece(window + place(window_bytes, t / occupied, warps, (begin * GROUP + t % occupied) % (groups * GROUP), piece), 0);
  __threadfence_system();
}
#endif

struct Finding {  // mirrored by FINDING in xstage_bench/device/cuda/layout.py
  u64 mismatches, offset;
  u32 expected, found;
};

// On the destination, after one isolated burst of `stores` operations per warp into memory that held `word` everywhere: every piece that was
// to be written is checked and given `word` back, so that xstage_untouched (verify.cu) then sees every stray byte.
extern "C" __global__ void xstage_consume(char *memory, u32 window_bytes, u32 producers, u32 warps, u32 stores, u32 tag, u32 word, Finding *finding) {
  const u64 total = (u64)producers * warps * stores * PIECES;
  for (u64 n = blockIdx.x * (u64)blockDim.x + threadIdx.x; n < total; n += (u64)gridDim.x * blockDim.x) {
    const u32 piece = n % PIECES, store = n / PIECES % stores, warp = n / PIECES / stores % warps, producer = n / PIECES / stores / warps;
    const u64 offset = (u64)producer * window_bytes + place(window_bytes, warp, warps, store, piece);
    u32 have[PIECE_WORDS];
    load_piece(memory + offset, have);
    const Pattern p = pattern_of(tag, producer, warp, origin(store, piece));
#pragma unroll
    for (u32 k = 0; k < PIECE_WORDS; ++k) {
      const u32 want = expected_word(p, k, store, 1);
      if (have[k] != want && atomicAdd(&finding->mismatches, 1ull) == 0) {
        finding->offset = offset + 4 * k;
        finding->expected = want;
        finding->found = have[k];
      }
    }
    fill_piece(memory + offset, word);
  }
}
