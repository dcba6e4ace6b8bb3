// What stands around a fused kernel: ranks that start together, and pieces of memory copied row by row, which is the All-to-All done
// afterwards, its permutation, and the communication SMs that work beside an attention.
#include "stamps.cuh"

struct Piece {  // mirrored by PIECE in xstage_bench/kernels/attention/transfer.py
  u64 from, to, flag;  // flag: a word that must have reached the launch's epoch, or 0
  u32 rows, row_bytes, from_pitch, to_pitch;
};

static constexpr u32 AT_ONCE = 4;  // loads under way in a thread

// CTA b copies pieces b, b + grid, ... in order. Rows and pitches are multiples of 16 bytes.
extern "C" __global__ void __launch_bounds__(512, 1) xstage_copy_pieces(const Piece *pieces, u32 count, u32 epoch, u64 timeout_ns, u32 *late) {
  for (u32 p = blockIdx.x; p < count; p += gridDim.x) {
    const Piece piece = pieces[p];
    if (piece.flag) {
      if (threadIdx.x == 0) {
        const u64 give_up = global_timer_ns() + timeout_ns;
        u32 seen;
        while (true) {
          asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(piece.flag) : "memory");
          if ((int)(seen - epoch) >= 0) break;
          if (global_timer_ns() > give_up) {
            *late = 1;
            break;
          }
          __nanosleep(200);
        }
      }
      __syncthreads();
    }
    const u32 per_row = piece.row_bytes / 16, units = per_row * piece.rows;
    for (u32 first = threadIdx.x; first < units; first += AT_ONCE * blockDim.x) {
      uint4 data[AT_ONCE];
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; ++i) {
        const u32 u = first + i * blockDim.x;
        if (u < units) data[i] = __ldcg((const uint4 *)(piece.from + (u64)(u / per_row) * piece.from_pitch) + u % per_row);
      }
#pragma unroll
      for (u32 i = 0; i < AT_ONCE; ++i) {
        const u32 u = first + i * blockDim.x;
        if (u < units) *((uint4 *)(piece.to + (u64)(u / per_row) * piece.to_pitch) + u % per_row) = data[i];
      }
    }
  }
}

// One thread of each rank. Nobody goes on before the host has queued everything (`go`, in its memory) and all ranks are here: what is
// timed after it begins on all GPUs within a link's latency and contains no launch.
extern "C" __global__ void xstage_meet(u32 *const *mail, u32 rank, u32 ranks, const volatile u32 *go, u32 round, u64 timeout_ns, u32 *late) {
  const u64 give_up = global_timer_ns() + timeout_ns;
  while ((int)(*go - round) < 0)
    if (global_timer_ns() > give_up) {
      *late = 1;
      return;
    }
  for (u32 r = 0; r < ranks; ++r) ((volatile u32 *)mail[r])[rank] = round;
  for (u32 r = 0; r < ranks; ++r)
    while ((int)(((volatile u32 *)mail[rank])[r] - round) < 0)
      if (global_timer_ns() > give_up) {
        *late = 1;
        return;
      }
}
