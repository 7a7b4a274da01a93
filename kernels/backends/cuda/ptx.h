// SPDX-License-Identifier: MIT
// The PTX words of the CUDA kernels, one function an instruction: mbarriers, tensor copies, wgmma fences, barriers,
// arithmetic.
//
// Names follow the PTX ISA. An address of shared memory is a uint32_t (`shared_address`); a phase is a parity, 0 or 1.
#pragma once

#include <cstdint>

#include "kernels/backends/cuda/tensor_map.h"

#define TILEKILN_DEVICE static __device__ __forceinline__

namespace tilekiln::cuda {

constexpr float kInfinity = __builtin_huge_valf(), kLargest = 3.402823466e38f;
constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

// A value that is the same in every lane, so that ptxas knows it. Without this, control flow and descriptors around
// wgmma go through WARPSYNC and R2UR: 6 % (head dim 128) to 16 % (64) of the forward on an H100.
TILEKILN_DEVICE int uniform(int x) { return __shfl_sync(~0u, x, 0); }

// The lane, asked for anew: what is worked out from it takes no registers in loops that do not need it.
TILEKILN_DEVICE int fresh_lane() {
  int lane;
  asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
  return lane;
}

// A word of shared memory that is the same for all lanes. What is read again wherever it is needed takes no registers
// in loops.
TILEKILN_DEVICE int field(const int& from) { return uniform(*const_cast<const volatile int*>(&from)); }

TILEKILN_DEVICE uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

// mbarriers.
TILEKILN_DEVICE void barrier_init(uint64_t& b, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&b)), "r"(arrivals));
}
TILEKILN_DEVICE void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;"); }
TILEKILN_DEVICE void arrive_expecting(uint64_t& b, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&b)), "r"(bytes)
               : "memory");
}
TILEKILN_DEVICE void arrive(uint64_t& b) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&b)) : "memory");
}
TILEKILN_DEVICE void wait(uint64_t& b, uint32_t phase) {
  asm volatile(
      "{.reg .pred p; again%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1; @p bra done%=; bra again%=; "
      "done%=: }" ::"r"(shared_address(&b)),
      "r"(phase)
      : "memory");
}
// One arrival for the warp. __syncwarp: lane 0's arrival must also release what the other lanes have read.
TILEKILN_DEVICE void warp_arrive(uint64_t& b, int lane) {
  __syncwarp();
  if (lane == 0) arrive(b);
}

// Arrives as warp_arrive, where `condition`. By a predicate: at a branch ptxas would wait for all products in flight.
TILEKILN_DEVICE void warp_arrive_if(bool condition, uint64_t& b, int lane) {
  __syncwarp();
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0];}" ::"r"(shared_address(&b)),
      "r"(int(condition && lane == 0))
      : "memory");
}

// Named barriers of `threads` threads; ids from 1 (0 is __syncthreads).
TILEKILN_DEVICE void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TILEKILN_DEVICE void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#if __CUDA_ARCH__ >= 900
// A launch that begins under the one before it: what that one wrote is there behind the wait. It begins when all blocks
// of the other have said so, or have ended.
TILEKILN_DEVICE void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
TILEKILN_DEVICE void let_next_launch_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
constexpr int kEarly = 1;

// Clusters of blocks. All threads of all blocks of it arrive and wait, in turn; what they stored before is there behind
// the wait.
TILEKILN_DEVICE int cluster_rank() {
  int rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
TILEKILN_DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// Arrives, and of what the blocks stored before only mbarriers that were initialised are there (barrier_init_done).
TILEKILN_DEVICE void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
TILEKILN_DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// Stores a value to where another block of the cluster has the variable at `address` of this one.
TILEKILN_DEVICE void cluster_store(uint32_t address, int rank, uint32_t value) {
  asm volatile(
      "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.u32 [there], %2;}" ::"r"(address),
      "r"(rank), "r"(value)
      : "memory");
}
TILEKILN_DEVICE void cluster_store(uint32_t address, int rank, float value) {
  cluster_store(address, rank, __float_as_uint(value));
}
TILEKILN_DEVICE void cluster_store(uint32_t address, int rank, float4 value) {
  asm volatile(
      "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; st.shared::cluster.v4.f32 [there], {%2, %3, %4, "
      "%5};}" ::"r"(address),
      "r"(rank), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
}
// The address, for operations on shared::cluster, at which block `rank` has what is at `address` of this one.
TILEKILN_DEVICE uint32_t cluster_address(uint32_t address, int rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// Arrives, where `condition`, at an mbarrier of any block of the cluster. By a predicate: see warp_arrive_if.
TILEKILN_DEVICE void cluster_arrive_if(bool condition, uint32_t there) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %1, 0; @p mbarrier.arrive.shared::cluster.b64 _, [%0];}" ::"r"(there),
               "r"(int(condition))
               : "memory");
}
#else
TILEKILN_DEVICE void wait_for_launch_before() {}
TILEKILN_DEVICE void let_next_launch_begin() {}
TILEKILN_DEVICE void cluster_arrive() {}
TILEKILN_DEVICE void cluster_arrive_relaxed() {}
TILEKILN_DEVICE void cluster_wait() {}
template <class T> TILEKILN_DEVICE void cluster_store(uint32_t, int, T) {}
constexpr int kEarly = 0;
#endif

#if __CUDA_ARCH__ >= 900
// Has the description of an array on its way to TMA.
TILEKILN_DEVICE void ask_for(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
#endif

// The first of a kernel of little work: it waits, and where it has few blocks the launch behind it need not wait for
// room.
TILEKILN_DEVICE void begin_between_launches() {
  constexpr unsigned few = 64;
  if (gridDim.x <= few) let_next_launch_begin();
  wait_for_launch_before();
}

// Copies by TMA, global to shared memory; `b` counts the bytes.
TILEKILN_DEVICE void tensor_load(uint32_t to, const TensorMap& map, uint64_t& b, int c0, int c1, int c2, int c3,
                                 int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], "
      "[%2];" ::"r"(to),
      "l"(&map), "r"(shared_address(&b)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)
      : "memory");
}
#if __CUDA_ARCH__ >= 900
// Loads a tile to the same place of each block of the cluster whose bit is set, whose mbarrier `b` counts its bytes.
TILEKILN_DEVICE void tensor_load_to_all(uint32_t to, const TensorMap& map, uint64_t& b, int c0, int c1, int c2, int c3,
                                        int c4, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, "
      "%4, %5, %6, %7}], [%2], %8;" ::"r"(to),
      "l"(&map), "r"(shared_address(&b)), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), "h"(blocks)
      : "memory");
}
#endif
TILEKILN_DEVICE void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint64_t& b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
               "l"(from), "r"(bytes), "r"(shared_address(&b))
               : "memory");
}
// Four 8 x 8 matrices of a warp to shared memory; lane l gives the address of row l % 8 of matrix l / 8.
TILEKILN_DEVICE void store_matrices(uint32_t to, const uint32_t (&word)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word[0]), "r"(word[1]),
               "r"(word[2]), "r"(word[3])
               : "memory");
}
// Loads matrices from shared memory, each transposed.
TILEKILN_DEVICE void load_matrices_transposed(uint32_t (&word)[4], uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(from)
               : "memory");
}
// Two matrices; lanes 0 to 15 give the addresses.
TILEKILN_DEVICE void load_two_transposed(uint32_t from, uint32_t& first, uint32_t& second) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(first), "=r"(second)
               : "r"(from)
               : "memory");
}
// 16 bytes to shared memory. By a predicate: at a branch ptxas would wait for all products in flight.
TILEKILN_DEVICE void store_four_words(bool condition, uint32_t to, const uint32_t (&word)[4]) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p st.shared.v4.b32 [%0], {%1, %2, %3, %4};}" ::"r"(to),
               "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3]), "r"(int(condition))
               : "memory");
}
// Makes this thread's ordinary stores to shared memory visible to wgmma and to TMA.
TILEKILN_DEVICE void async_shared_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// wgmma: the products themselves are in wgmma.h. A descriptor of a tile whose rows are 128 bytes, swizzled by 128
// bytes.
TILEKILN_DEVICE uint64_t tile_descriptor(uint32_t address, int leading_bytes, int stride_bytes) {
  constexpr uint64_t kSwizzle128 = 1ull << 62;
  return uint64_t((address & 0x3FFFF) >> 4) | uint64_t(leading_bytes >> 4) << 16 | uint64_t(stride_bytes >> 4) << 32 |
         kSwizzle128;
}
TILEKILN_DEVICE void product_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TILEKILN_DEVICE void product_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending> TILEKILN_DEVICE void product_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps reads and writes of accumulators on their side of a wait: NVVM would hoist them.
// Eight a statement: the compiler walks all statements often.
template <int N> TILEKILN_DEVICE void pin(float (&a)[N]) {
  static_assert(N % 8 == 0);
#pragma unroll
  for (int i = 0; i < N; i += 8)
    asm volatile(""
                 : "+f"(a[i]), "+f"(a[i + 1]), "+f"(a[i + 2]), "+f"(a[i + 3]), "+f"(a[i + 4]), "+f"(a[i + 5]),
                   "+f"(a[i + 6]), "+f"(a[i + 7]));
}

template <int N> TILEKILN_DEVICE void pin(int (&a)[N]) {
  static_assert(N % 8 == 0);
#pragma unroll
  for (int i = 0; i < N; i += 8)
    asm volatile(""
                 : "+r"(a[i]), "+r"(a[i + 1]), "+r"(a[i + 2]), "+r"(a[i + 3]), "+r"(a[i + 4]), "+r"(a[i + 5]),
                   "+r"(a[i + 6]), "+r"(a[i + 7]));
}

// Operands in registers are there before the fence: NVVM would work them out behind it.
TILEKILN_DEVICE void pin(uint32_t (&word)[4]) {
  asm volatile("" : "+r"(word[0]), "+r"(word[1]), "+r"(word[2]), "+r"(word[3]));
}

// Integers that are worked out where this stands: their loads would sink behind the next wait.
TILEKILN_DEVICE void hold(int& a, int& b) { asm volatile("" : "+r"(a), "+r"(b)::"memory"); }

template <int kRegisters> TILEKILN_DEVICE void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters> TILEKILN_DEVICE void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Four neighbours in global memory: stored, or an fp32 add. By a predicate: at a branch ptxas would wait for all
// products in flight.
TILEKILN_DEVICE void store_or_add(bool store, float4* to, float4 part) {
  asm volatile(
      "{.reg .pred p; setp.ne.b32 p, %5, 0; @p st.global.v4.f32 [%0], {%1, %2, %3, %4}; "
      "@!p red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};}" ::"l"(to),
      "f"(part.x), "f"(part.y), "f"(part.z), "f"(part.w), "r"(int(store))
      : "memory");
}

// 16 bits from global memory, or zero. One predicated instruction: a branch each would triple a loop's size.
TILEKILN_DEVICE uint16_t load_if(bool condition, const uint16_t* from) {
  uint16_t bits;
  asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b16 %0, 0; @p ld.global.nc.b16 %0, [%1];}"
               : "=h"(bits)
               : "l"(from), "r"(int(condition)));
  return bits;
}

// A number from global memory, or zero, as load_if of 16 bits.
TILEKILN_DEVICE float load_if(bool condition, const float* from) {
  float x;
  asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.nc.f32 %0, [%1];}"
               : "=f"(x)
               : "l"(from), "r"(int(condition)));
  return x;
}

// A word from global memory, or zero, as load_if of 16 bits.
TILEKILN_DEVICE uint32_t load_word_if(bool condition, const void* from) {
  uint32_t word;
  asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.nc.b32 %0, [%1];}"
               : "=r"(word)
               : "l"(from), "r"(int(condition)));
  return word;
}

// A byte from global memory, or zero, as load_if of 16 bits.
TILEKILN_DEVICE uint8_t load_if(bool condition, const uint8_t* from) {
  uint32_t bits;
  asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; mov.b32 %0, 0; @p ld.global.nc.u8 %0, [%1];}"
               : "=r"(bits)
               : "l"(from), "r"(int(condition)));
  return uint8_t(bits);
}

// The low 16 bits of a word to global memory, by a predicate.
TILEKILN_DEVICE void store_if(bool condition, uint16_t* to, uint32_t word) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %2, 0; @p st.global.b16 [%0], %1;}" ::"l"(to), "h"(uint16_t(word)),
               "r"(int(condition))
               : "memory");
}

// 16 bytes to global memory, by a predicate.
TILEKILN_DEVICE void store_if(bool condition, float* to, float one, float other) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %3, 0; @p st.global.v2.f32 [%0], {%1, %2};}" ::"l"(to), "f"(one),
               "f"(other), "r"(int(condition))
               : "memory");
}
TILEKILN_DEVICE void store_if(bool condition, void* to, uint4 line) {
  asm volatile("{.reg .pred p; setp.ne.b32 p, %5, 0; @p st.global.v4.b32 [%0], {%1, %2, %3, %4};}" ::"l"(to),
               "r"(line.x), "r"(line.y), "r"(line.z), "r"(line.w), "r"(int(condition))
               : "memory");
}

// A vector, or zeros where it is not `there`: by a predicate, since loads at branches are waited for one after the
// other. `load_vector_once` leaves L1 to vectors that are read again.
#define TILEKILN_LOAD_IF(name, hint)                                                                            \
  TILEKILN_DEVICE uint4 name(bool there, const void* from) {                                                    \
    uint4 v;                                                                                                    \
    asm volatile(                                                                                               \
        "{.reg .pred p; setp.ne.b32 p, %5, 0; mov.b32 %0, 0; mov.b32 %1, 0; mov.b32 %2, 0; mov.b32 %3, 0; @p "  \
        "ld.global" hint ".v4.b32 {%0, %1, %2, %3}, [%4];}"                                                     \
        : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)                                                        \
        : "l"(from), "r"(int(there)));                                                                          \
    return v;                                                                                                   \
  }
TILEKILN_LOAD_IF(load_vector_if, "")
TILEKILN_LOAD_IF(load_vector_once, ".L1::no_allocate")
#undef TILEKILN_LOAD_IF

// Asks L1, or L2, for a line of memory.
TILEKILN_DEVICE void prefetch_l1(const void* at) { asm volatile("prefetch.global.L1 [%0];" ::"l"(at)); }
TILEKILN_DEVICE void prefetch_l2(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at) : "memory"); }

// A counter of all CTAs: whoever sees a 1 that was added sees what was written before it.
TILEKILN_DEVICE unsigned load_acquired(const unsigned* counter) {
  unsigned count;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(counter) : "memory");
  return count;
}
TILEKILN_DEVICE void add_released(unsigned* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

// A vector whose values are worked out from its registers again.
TILEKILN_DEVICE void keep_in_registers(uint4& v) { asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)); }

// Vectors of shared memory by address.
TILEKILN_DEVICE void store_word(uint32_t to, uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}
TILEKILN_DEVICE float load_shared_float(uint32_t from) {
  float x;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(from) : "memory");
  return x;
}
TILEKILN_DEVICE void load_shared_floats(uint32_t from, float& x, float& y) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(from) : "memory");
}
TILEKILN_DEVICE void store_shared(uint32_t to, uint4 v) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
TILEKILN_DEVICE uint2 load_shared_pair(uint32_t from) {
  uint2 v;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from));
  return v;
}
TILEKILN_DEVICE uint32_t load_shared_word(uint32_t from) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
  return word;
}
TILEKILN_DEVICE uint4 load_shared(uint32_t from) {
  uint4 v;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(from)
               : "memory");
  return v;
}

// 16 bytes to shared memory, of which `bytes` are read and the rest are zeros.
TILEKILN_DEVICE void copy_async_bytes(uint32_t to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
TILEKILN_DEVICE void copy_async(uint32_t to, const void* from, bool inside) {
  copy_async_bytes(to, from, inside ? 16 : 0);
}
// A word to shared memory.
TILEKILN_DEVICE void copy_async_word(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}
TILEKILN_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kPending> TILEKILN_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Waits for a number that is known at run time; beyond 13 it waits for 13.
TILEKILN_DEVICE void copy_async_wait(int pending) {
  switch (pending) {
#define TILEKILN_WAIT(n) \
  case n: return copy_async_wait<n>();
    TILEKILN_WAIT(0)
    TILEKILN_WAIT(1)
    TILEKILN_WAIT(2)
    TILEKILN_WAIT(3)
    TILEKILN_WAIT(4)
    TILEKILN_WAIT(5)
    TILEKILN_WAIT(6)
    TILEKILN_WAIT(7)
    TILEKILN_WAIT(8)
    TILEKILN_WAIT(9)
    TILEKILN_WAIT(10)
    TILEKILN_WAIT(11)
    TILEKILN_WAIT(12)
    default: return copy_async_wait<13>();
#undef TILEKILN_WAIT
  }
}

// Arithmetic.
TILEKILN_DEVICE float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// a b + c, kept within [0, 1].
TILEKILN_DEVICE float multiply_add_saturated(float a, float b, float c) {
  float y;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
  return y;
}
TILEKILN_DEVICE float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
// An integer rounded to fp32; where `as_bits`, its bits. By a predicate, so that it may stay in its register.
TILEKILN_DEVICE float number_unless(bool as_bits, int x) {
  float y;
  asm("{.reg .pred p; setp.eq.b32 p, %2, 0; mov.b32 %0, %1; @p cvt.rn.f32.s32 %0, %1;}"
      : "=f"(y)
      : "r"(x), "r"(int(as_bits)));
  return y;
}
// NaN where either is.
TILEKILN_DEVICE float larger_or_nan(float a, float b) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
TILEKILN_DEVICE float tanh_approx(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Four of e4m3, exact in fp16, and as numbers.
TILEKILN_DEVICE void unpack_e4m3(uint32_t four, uint32_t& low, uint32_t& high) {
  asm("{.reg .b16 a, b; mov.b32 {a, b}, %2; cvt.rn.f16x2.e4m3x2 %0, a; cvt.rn.f16x2.e4m3x2 %1, b;}"
      : "=r"(low), "=r"(high)
      : "r"(four));
}
TILEKILN_DEVICE void unpack_e4m3(uint32_t four, float& w, float& x, float& y, float& z) {
  asm("{.reg .b16 a, b, c, d; .reg .b32 s, t; mov.b32 {a, b}, %4; cvt.rn.f16x2.e4m3x2 s, a; "
      "cvt.rn.f16x2.e4m3x2 t, b; mov.b32 {a, b}, s; mov.b32 {c, d}, t; "
      "cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; cvt.f32.f16 %2, c; cvt.f32.f16 %3, d;}"
      : "=f"(w), "=f"(x), "=f"(y), "=f"(z)
      : "r"(four));
}
// Two values of fp16 in a word, low half first, whatever the element type.
TILEKILN_DEVICE uint32_t pack_halves(float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// The element type, as instructions name it.
#ifdef TILEKILN_FP16
#define TILEKILN_ELEMENT "f16"
#else
#define TILEKILN_ELEMENT "bf16"
#endif
// Two values of the element type in a word, low half first; rounded to nearest even.
TILEKILN_DEVICE uint32_t pack(float low, float high) {
  uint32_t word;
  asm("cvt.rn." TILEKILN_ELEMENT "x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
#if __CUDA_ARCH__ >= 900
// Four values to e4m3, lowest byte first; the largest stands for what is beyond it.
TILEKILN_DEVICE uint32_t pack_e4m3(float a, float b, float c, float d) {
  uint32_t word;
  asm("{.reg .b16 l, h; cvt.rn.satfinite.e4m3x2.f32 l, %2, %1; cvt.rn.satfinite.e4m3x2.f32 h, %4, %3; "
      "mov.b32 %0, {l, h};}"
      : "=r"(word)
      : "f"(a), "f"(b), "f"(c), "f"(d));
  return word;
}
#endif
#ifdef TILEKILN_FP16
TILEKILN_DEVICE void unpack(uint32_t word, float& low, float& high) {
  asm("{.reg .b16 l, h; mov.b32 {l, h}, %2; cvt.f32.f16 %0, l; cvt.f32.f16 %1, h;}"
      : "=f"(low), "=f"(high)
      : "r"(word));
}
TILEKILN_DEVICE float element(uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
#elif defined(TILEKILN_EXCHANGED)
// The PTX of fp16 is made of this one's (build_support/toolchains/exchange.py), which must tell conversions from other
// shifts.
TILEKILN_DEVICE void unpack(uint32_t word, float& low, float& high) {
  asm("{shl.b32 %0, %2, 16; and.b32 %1, %2, 0xffff0000;}" : "=f"(low), "=f"(high) : "r"(word));
}
TILEKILN_DEVICE float element(uint16_t bits) {
  float x;
  asm("{.reg .b32 w; cvt.u32.u16 w, %1; shl.b32 %0, w, 16;}" : "=f"(x) : "h"(bits));
  return x;
}
#else
TILEKILN_DEVICE void unpack(uint32_t word, float& low, float& high) {
  low = __uint_as_float(word << 16);
  high = __uint_as_float(word & 0xffff0000u);
}
TILEKILN_DEVICE float element(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }
#endif

// Accumulators hold columns 8 j + 2 (lane % 4) + {0, 1}. Four such words of one row, of j .. j + 3, become the lane's
// eight neighbours 8 (lane % 4) + 0..7 from column 8 j: a 4 x 4 transpose inside the lane quad.
TILEKILN_DEVICE uint4 quad_transpose(int lane, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
  const bool odd = lane & 1, upper = lane & 2;
  uint32_t u = __shfl_xor_sync(~0u, odd ? a0 : a1, 1), v = __shfl_xor_sync(~0u, odd ? a2 : a3, 1);
  if (odd) {
    a0 = u, a2 = v;
  } else {
    a1 = u, a3 = v;
  }
  u = __shfl_xor_sync(~0u, upper ? a0 : a2, 2), v = __shfl_xor_sync(~0u, upper ? a1 : a3, 2);
  if (upper) {
    a0 = u, a1 = v;
  } else {
    a2 = u, a3 = v;
  }
  return make_uint4(a0, a1, a2, a3);
}

template <int kValue> struct Constant { static constexpr int value = kValue; };

}  // namespace tilekiln::cuda
