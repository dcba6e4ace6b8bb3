// Time stamps for a kernel of your own, from which `xstage import` makes a Schedule and a Trace. C++17; no include.
//
//   extern "C" __global__ void mine(..., void *stamps) {
//     XSTAGE_STAMPS(s, stamps, gridDim.x * 4, 64, blockIdx.x * 4 + threadIdx.x / 32);  // slots, records of each, the slot of this warp
//     for (...) {
//       XSTAGE_BEGIN(s);  compute();      XSTAGE_COMPUTE_END(s);
//       XSTAGE_BEGIN(s);  store_tile();   XSTAGE_BURST_END(s, 4096);  // bytes that this warp has stored to the peer
//     }
//     XSTAGE_STAMPS_END(s);
//   }
//
// One slot per warp that stores; whole warps execute the macros. Compiled without XSTAGE_STAMPS_ON they are nothing. A stamp is one read of the
// clock at the beginning, and one with a 16-byte store of lane 0 to the GPU's own memory at the end. The buffer, zeroed before the launch, has
// xstage::stamps_bytes(slots, records) bytes; written to a file as it is, it is what `xstage import` reads (docs/own-kernel.md has the layout).
#ifndef XSTAGE_STAMPS_CUH
#define XSTAGE_STAMPS_CUH

#ifndef XSTAGE_BOTH
#ifdef __CUDACC__
#define XSTAGE_BOTH __host__ __device__
#else
#define XSTAGE_BOTH
#endif
#endif

namespace xstage {

struct StampFile {  // mirrored by FILE in xstage_bench/measure/stamps/layout.py, as are the others
  unsigned magic, version, slots, records, reserved[12];
};
struct StampSlot {
  unsigned smid, block, warp, written;
  unsigned long long first_clock, first_ns, last_clock, last_ns;
  unsigned reserved[4];
};
struct Stamp {
  unsigned start_cycles, end_cycles, bytes, kind_and_event;  // cycles after first_clock; the kind in the upper 8 bits
};

constexpr unsigned stamp_magic = 0x50545358u;  // "XSTP" in a little-endian file
constexpr unsigned burst_stamp = 1, compute_stamp = 2, wait_stamp = 3, signal_stamp = 4;
constexpr unsigned no_event = 0xffffffu;

XSTAGE_BOTH constexpr unsigned long long stamps_bytes(unsigned slots, unsigned records) {
  return sizeof(StampFile) + slots * (sizeof(StampSlot) + (unsigned long long)records * sizeof(Stamp));
}

#ifdef __CUDACC__
class Stamper {
 public:
  __device__ __forceinline__ Stamper(void *buffer, unsigned slots, unsigned records, unsigned slot)
      : records_(records), written_(0), writes_(lane() == 0 && slot < slots) {
    char *base = (char *)buffer;
    slot_ = (StampSlot *)(base + sizeof(StampFile)) + slot;
    stamps_ = (Stamp *)(base + sizeof(StampFile) + slots * sizeof(StampSlot)) + (unsigned long long)slot * records;
    first_clock_ = clock();
    first_ns_ = timer();
    if (writes_ && slot == 0) put(base, stamp_magic, 1, slots, records);  // the rest is reserved, and zero
    begun_ = (unsigned)first_clock_;
  }

  __device__ __forceinline__ void begin() { begun_ = tick(); }

  // A warp's stores wait in a queue, a dozen deep, with their data still in registers: it goes on before the SM has taken them, until it needs one of
  // those registers. A fence of the CTA's scope waits until they are taken, not until they have drained, so that the burst ends where it ends.
  __device__ __forceinline__ void end(unsigned kind, unsigned bytes, unsigned event) {
    if (kind == burst_stamp) asm volatile("fence.acq_rel.cta;" ::: "memory");
    const unsigned first = (unsigned)first_clock_, now = tick();
    if (writes_ && written_ < records_) put(stamps_ + written_, begun_ - first, now - first, bytes, kind << 24 | (event & no_event));
    ++written_;
  }

  // What exceeded the buffer is counted and named by `xstage import`.
  __device__ __forceinline__ void close() {
    unsigned smid;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(smid));
    const unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    const unsigned long long last_clock = clock(), last_ns = timer();
    if (writes_) *slot_ = StampSlot{smid, block, thread / 32, written_, first_clock_, first_ns_, last_clock, last_ns, {}};
  }

 private:
  static __device__ __forceinline__ unsigned lane() {
    unsigned id;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(id));
    return id;
  }
  static __device__ __forceinline__ void put(void *at, unsigned x, unsigned y, unsigned z, unsigned w) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(at), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
  }
  // The memory clobber keeps loads and stores on their side of a stamp; arithmetic alone may be moved over it.
  static __device__ __forceinline__ unsigned tick() {
    unsigned t;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(t)::"memory");
    return t;
  }
  static __device__ __forceinline__ unsigned long long clock() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %%clock64;" : "=l"(t)::"memory");
    return t;
  }
  static __device__ __forceinline__ unsigned long long timer() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
  }

  StampSlot *slot_;
  Stamp *stamps_;
  unsigned long long first_clock_, first_ns_;
  unsigned records_, written_, begun_;
  bool writes_;
};
#endif

}  // namespace xstage

#ifdef XSTAGE_STAMPS_ON
#define XSTAGE_STAMPS(name, buffer, slots, records, slot) xstage::Stamper name(buffer, slots, records, slot)
#define XSTAGE_BEGIN(name) name.begin()
#define XSTAGE_BURST_END(name, bytes) name.end(xstage::burst_stamp, bytes, xstage::no_event)
#define XSTAGE_COMPUTE_END(name) name.end(xstage::compute_stamp, 0, xstage::no_event)
#define XSTAGE_WAIT_END(name, event) name.end(xstage::wait_stamp, 0, event)
#define XSTAGE_SIGNAL_END(name, event) name.end(xstage::signal_stamp, 0, event)
#define XSTAGE_STAMPS_END(name) name.close()
#else  // what is named counts as used, and is not evaluated
#define XSTAGE_STAMPS(name, buffer, slots, records, slot) ((void)(sizeof(buffer) + sizeof(slots) + sizeof(records) + sizeof(slot)))
#define XSTAGE_BEGIN(name) ((void)0)
#define XSTAGE_BURST_END(name, bytes) ((void)sizeof(bytes))
#define XSTAGE_COMPUTE_END(name) ((void)0)
#define XSTAGE_WAIT_END(name, event) ((void)sizeof(event))
#define XSTAGE_SIGNAL_END(name, event) ((void)sizeof(event))
#define XSTAGE_STAMPS_END(name) ((void)0)
#endif
#endif
