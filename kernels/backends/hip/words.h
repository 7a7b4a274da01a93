// SPDX-License-Identifier: MIT
// CUDA's words on AMD's architectures, so that one text of rows, moves and choices compiles for both
// (kernels/backends/words.h).
//
// A warp is 32 lanes on all of them: on CDNA a wave of 64 holds two, which exchange nothing. Blocks never wait for each
// other here. Emulated (functional), never run on AMD silicon. -D: TILEKILN_FP16, TILEKILN_FP32.
#pragma once
#include <stdint.h>

#include "kernels/backends/hip/vocabulary.h"

#define __forceinline__ inline __attribute__((always_inline))
#define __grid_constant__
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define threadIdx (tilekiln::hip::Index{unsigned(__builtin_amdgcn_workitem_id_x())})
#define blockIdx (tilekiln::hip::Index{unsigned(__builtin_amdgcn_workgroup_id_x())})
// The runtime's own arguments behind a kernel's (LLVM, AMDGPUUsage, code object version 5).
#define gridDim \
  (tilekiln::hip::Index{((tilekiln::hip::ConstantMemory<const uint32_t>)__builtin_amdgcn_implicitarg_ptr())[0]})
#define blockDim \
  (tilekiln::hip::Index{((tilekiln::hip::ConstantMemory<const uint16_t>)__builtin_amdgcn_implicitarg_ptr())[6]})

#pragma clang diagnostic ignored "-Wmissing-field-initializers"  // of builds' constants, whose rest is 0

namespace tilekiln::hip {

struct Index { unsigned x; };

}  // namespace tilekiln::hip

namespace tilekiln::cuda {

using hip::bit_cast, hip::kInfinity, hip::kLn2;
constexpr float kLargest = 3.402823466e38f, kLog2E = hip::kLog2e;
constexpr int kEarly = 0;  // a launch begins behind the one before it
TILEKILN_DEVICE void begin_between_launches() {}

using uint2 = hip::U2;
using uint4 = hip::U4;
using float2 = hip::Float2;
using float4 = float __attribute__((ext_vector_type(4)));
TILEKILN_DEVICE uint2 make_uint2(uint32_t x, uint32_t y) { return uint2{x, y}; }
TILEKILN_DEVICE float4 make_float4(float x, float y, float z, float w) { return float4{x, y, z, w}; }
TILEKILN_DEVICE uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return uint4{x, y, z, w}; }

// Lanes of a warp.
TILEKILN_DEVICE int lane_of(int in_warp) { return (hip::lane() & ~31) | in_warp; }
template <class Value> TILEKILN_DEVICE Value of_lane(Value v, int lane) {
  return bit_cast<Value>(__builtin_amdgcn_ds_bpermute(lane << 2, bit_cast<int>(v)));
}
template <class Value> TILEKILN_DEVICE Value __shfl_xor_sync(unsigned, Value v, int by) {
  return of_lane(v, hip::lane() ^ by);
}
template <class Value> TILEKILN_DEVICE Value __shfl_sync(unsigned, Value v, int from) {
  return of_lane(v, lane_of(from));
}
template <class Value> TILEKILN_DEVICE Value __shfl_up_sync(unsigned, Value v, int by) {
  return of_lane(v, (hip::lane() & 31) < by ? hip::lane() : hip::lane() - by);
}
TILEKILN_DEVICE uint32_t __ballot_sync(unsigned, bool set) {
  if constexpr (hip::kLanes == 64) return uint32_t(__builtin_amdgcn_ballot_w64(set) >> (hip::lane() & 32));
  return uint32_t(__builtin_amdgcn_ballot_w64(set));
}
TILEKILN_DEVICE int __popc(uint32_t word) { return __builtin_popcount(word); }

TILEKILN_DEVICE void __syncwarp() { hip::publish_to_wave(); }
TILEKILN_DEVICE void __syncthreads() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// Blocks meet on NVIDIA alone: declared for what asks for kBlocksMeet first.
constexpr bool kBlocksMeet = false;
__device__ void meet_blocks(unsigned* word);
__device__ bool is_last(unsigned* word, unsigned all, unsigned* shared);
// Teams of a block that are more than a warp are the block.
TILEKILN_DEVICE void named_sync(int, int) { __syncthreads(); }

// LDS by address. What is copied there asynchronously on NVIDIA is there at once.
template <class Value> using Local = hip::Local<Value>;
TILEKILN_DEVICE uint32_t shared_address(const void* p) { return uint32_t(uintptr_t(Local<const char>(p))); }
TILEKILN_DEVICE void store_shared(uint32_t to, uint4 v) { *Local<uint4>(to) = v; }
TILEKILN_DEVICE uint4 load_shared(uint32_t from) { return *Local<const uint4>(from); }
TILEKILN_DEVICE void copy_async_bytes(uint32_t to, const void* from, int bytes) {
  if (bytes >= 16) return store_shared(to, *static_cast<const uint4*>(from));
  auto* const into = Local<uint16_t>(to);
#pragma unroll
  for (int i = 0; i < 8; ++i) into[i] = 2 * i < bytes ? static_cast<const uint16_t*>(from)[i] : uint16_t(0);
}
TILEKILN_DEVICE void copy_async(uint32_t to, const void* from, bool inside) {
  copy_async_bytes(to, from, inside ? 16 : 0);
}
TILEKILN_DEVICE void copy_async_commit() {}
TILEKILN_DEVICE void copy_async_wait(int) {}
template <int kPending> TILEKILN_DEVICE void copy_async_wait() {}

// Vectors, or zeros where they are not `there`.
TILEKILN_DEVICE uint4 load_vector_if(bool there, const void* from) {
  return there ? *static_cast<const uint4*>(from) : make_uint4(0, 0, 0, 0);
}
TILEKILN_DEVICE uint4 load_vector_once(bool there, const void* from) { return load_vector_if(there, from); }
TILEKILN_DEVICE void keep_in_registers(uint4& v) { asm volatile("" : "+v"(v)); }
template <class Value> TILEKILN_DEVICE Value __ldcg(const Value* from) { return *from; }
template <class Value> TILEKILN_DEVICE Value __ldcs(const Value* from) { return *from; }
template <class Value> TILEKILN_DEVICE void __stcs(Value* to, const Value& v) { *to = v; }

// Arithmetic. What is asked for to the last bit is not put in another order.
template <class Value> TILEKILN_DEVICE Value min(Value a, Value b) { return b < a ? b : a; }
template <class Value> TILEKILN_DEVICE Value max(Value a, Value b) { return a < b ? b : a; }
TILEKILN_DEVICE float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
TILEKILN_DEVICE float fminf(float a, float b) { return __builtin_fminf(a, b); }
TILEKILN_DEVICE float sqrtf(float a) { return __builtin_sqrtf(a); }
TILEKILN_DEVICE float fabsf(float a) { return __builtin_fabsf(a); }
TILEKILN_DEVICE float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
TILEKILN_DEVICE float exp2_approx(float x) { return hip::exp2(x); }
TILEKILN_DEVICE float log2_approx(float x) { return hip::log2(x); }
TILEKILN_DEVICE float logf(float x) { return hip::kLn2 * hip::log2(x); }
TILEKILN_DEVICE float tanh_approx(float x) { return hip::tanh(x); }
TILEKILN_DEVICE float __fdividef(float a, float b) { return a * hip::reciprocal(b); }
TILEKILN_DEVICE float __fadd_rn(float a, float b) {
#pragma clang fp reassociate(off) contract(off)
  return a + b;
}
TILEKILN_DEVICE float __fsub_rn(float a, float b) {
#pragma clang fp reassociate(off) contract(off)
  return a - b;
}
// The nearest quotient where it, and the reciprocal, are normal numbers: what is missing of a first one is added to it.
TILEKILN_DEVICE float __fdiv_rn(float a, float b) {
#pragma clang fp reassociate(off) contract(off) reciprocal(off)
  const float first = hip::reciprocal(b), r = __builtin_fmaf(__builtin_fmaf(-first, b, 1.f), first, first),
              near = a * r;
  const float y = __builtin_fmaf(__builtin_fmaf(-near, b, a), r, near);
  return y - y == 0.f ? y : a * first;
}
TILEKILN_DEVICE float larger_or_nan(float a, float b) { return a != a ? a : b != b ? b : fmaxf(a, b); }
TILEKILN_DEVICE uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t chosen) {
  uint32_t word = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t from = chosen >> 4 * i & 7;
    word |= ((from < 4 ? a : b) >> 8 * (from & 3) & 0xff) << 8 * i;
  }
  return word;
}
TILEKILN_DEVICE uint32_t __umulhi(uint32_t a, uint32_t b) { return uint32_t(uint64_t(a) * b >> 32); }
TILEKILN_DEVICE float __uint_as_float(uint32_t bits) { return bit_cast<float>(bits); }
TILEKILN_DEVICE uint32_t __float_as_uint(float x) { return bit_cast<uint32_t>(x); }

// Elements of 16 bits.
TILEKILN_DEVICE uint32_t pack(float low, float high) { return bit_cast<uint32_t>(hip::T2{hip::T(low), hip::T(high)}); }
TILEKILN_DEVICE float element(uint16_t bits) { return float(bit_cast<hip::T>(bits)); }
TILEKILN_DEVICE void unpack(uint32_t word, float& low, float& high) {
  const auto both = bit_cast<hip::T2>(word);
  low = float(both.x), high = float(both.y);
}

}  // namespace tilekiln::cuda
