// SPDX-License-Identifier: MIT
// Operations that differ between AMD's architectures, under one set of names: matrix products of 16-bit operands, the
// layout of their registers, the other half of a wave, buffers with a range check. Compiled by clang, without ROCm's
// headers.
//
// An accumulator holds a kRows x kColumns block of a product; a lane holds part of one of its columns. Lanes l and
// l + kHalf share a column: half h of lane is 0 or 1.
#pragma once
#include "kernels/backends/philox.h"

#define __device__ __attribute__((device))
#define __global__ __attribute__((global))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant, used))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define TILEKILN_DEVICE [[maybe_unused]] __attribute__((device, always_inline)) static inline
#define TILEKILN_LAMBDA __attribute__((always_inline))  // behind a lambda's parameters
#define TILEKILN_KERNEL(threads) extern "C" __global__ __attribute__((amdgpu_flat_work_group_size(threads, threads)))

// Macros that neither builds.yaml nor the dtype defines: a KV cache; q, k and v of 8 bits, or k and v of a cache alone;
// 1: e4m3fnuz, 2: e5m2fnuz, 0: OCP e4m3.
#ifndef CACHE
#define CACHE 0
#endif
#ifndef FP8
#define FP8 0
#endif
#ifndef KV_FP8
#define KV_FP8 0
#endif
#ifndef FNUZ
#define FNUZ 0
#endif
// Set where the architecture converts and multiplies the format. FNUZ's are gfx942's, which has no OCP ones.
#if (defined(__gfx942__) && FNUZ) || ((defined(__gfx950__) || defined(__GFX12__)) && !FNUZ)
#define TILEKILN_CONVERTS_FP8 1
#else
#define TILEKILN_CONVERTS_FP8 0
#if FNUZ
#error "FNUZ formats are gfx942's"
#endif
#endif
#define TILEKILN_NATIVE_FP8 (FP8 && TILEKILN_CONVERTS_FP8)

namespace tilekiln::hip {

using u16 = unsigned short;
using u32 = unsigned int;
using i64 = long long;
using u64 = unsigned long long;

#ifdef TILEKILN_FP16
constexpr bool kBf16 = false;
using T = _Float16;
#else
constexpr bool kBf16 = true;
using T = __bf16;
#endif
constexpr int kFp8 = FP8, kFnuz = FNUZ;
constexpr bool kKvFp8 = KV_FP8;
using T2 = T __attribute__((ext_vector_type(2)));
using T4 = T __attribute__((ext_vector_type(4)));
using T8 = T __attribute__((ext_vector_type(8)));
using T16 = T __attribute__((ext_vector_type(16)));
using S4 = short __attribute__((ext_vector_type(4)));
using S8 = short __attribute__((ext_vector_type(8)));
using S16 = short __attribute__((ext_vector_type(16)));
using Float2 = float __attribute__((ext_vector_type(2)));
using Float8 = float __attribute__((ext_vector_type(8)));
using Float16 = float __attribute__((ext_vector_type(16)));
using U2 = u32 __attribute__((ext_vector_type(2)));
using U4 = u32 __attribute__((ext_vector_type(4)));

template <bool first, class A, class B> struct Chosen { using Type = A; };
template <class A, class B> struct Chosen<false, A, B> { using Type = B; };
template <bool first, class A, class B> using Choose = typename Chosen<first, A, B>::Type;

// Pointers to global memory, which are flat else out of a struct and count twice, to LDS, and to what is the same for
// all.
template <class Value> using Global = __attribute__((address_space(1))) Value*;
template <class Value> using Local = __attribute__((address_space(3))) Value*;
template <class Value> using ConstantMemory = __attribute__((address_space(4))) Value*;

template <class To, class From> TILEKILN_DEVICE To bit_cast(From from) { return __builtin_bit_cast(To, from); }

// --- D = A B + C on one wave: A kRows x kDepth, B kDepth x kColumns ---
#if defined(__gfx90a__) || defined(__gfx942__)
constexpr int kLanes = 64, kRows = 32, kColumns = 32, kDepth = 8;
using Fragment = T4;
using Accumulator = Float16;
TILEKILN_DEVICE Accumulator multiply_add(Fragment a, Fragment b, Accumulator c) {
#ifndef TILEKILN_FP16
  return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(bit_cast<S4>(a), bit_cast<S4>(b), c, 0, 0, 0);
#else
  return __builtin_amdgcn_mfma_f32_32x32x8f16(a, b, c, 0, 0, 0);
#endif
}
#elif defined(__gfx950__)
constexpr int kLanes = 64, kRows = 32, kColumns = 32, kDepth = 16;
using Fragment = T8;
using Accumulator = Float16;
TILEKILN_DEVICE Accumulator multiply_add(Fragment a, Fragment b, Accumulator c) {
#ifndef TILEKILN_FP16
  return __builtin_amdgcn_mfma_f32_32x32x16_bf16(a, b, c, 0, 0, 0);
#else
  return __builtin_amdgcn_mfma_f32_32x32x16_f16(a, b, c, 0, 0, 0);
#endif
}
#elif defined(__GFX11__)
constexpr int kLanes = 32, kRows = 16, kColumns = 16, kDepth = 16;
using Fragment = T16;  // lanes 16-31 hold what lanes 0-15 hold
using Accumulator = Float8;
TILEKILN_DEVICE Accumulator multiply_add(Fragment a, Fragment b, Accumulator c) {
#ifndef TILEKILN_FP16
  return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32(bit_cast<S16>(a), bit_cast<S16>(b), c);
#else
  return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32(a, b, c);
#endif
}
#elif defined(__GFX12__)
constexpr int kLanes = 32, kRows = 16, kColumns = 16, kDepth = 16;
using Fragment = T8;
using Accumulator = Float8;
TILEKILN_DEVICE Accumulator multiply_add(Fragment a, Fragment b, Accumulator c) {
#ifndef TILEKILN_FP16
  return __builtin_amdgcn_wmma_f32_16x16x16_bf16_w32_gfx12(bit_cast<S8>(a), bit_cast<S8>(b), c);
#else
  return __builtin_amdgcn_wmma_f32_16x16x16_f16_w32_gfx12(a, b, c);
#endif
}
#else
#error "no matrix product is known for this architecture: gfx90a, gfx942, gfx950, gfx11xx, gfx12xx"
#endif

constexpr int kHalf = kLanes / 2;
constexpr int kFragment = sizeof(Fragment) / sizeof(T);  // elements of A, and of B, that a lane holds
constexpr int kAccumulator = sizeof(Accumulator) / sizeof(float);

/// The row of the block that element r of a lane's accumulator is.
TILEKILN_DEVICE int row_of(int r, int half) {
#if defined(__GFX11__)
  return 2 * r + half;
#elif defined(__GFX12__)
  return 8 * half + r;
#else
  return 8 * (r / 4) + 4 * half + r % 4;
#endif
}

/// The place in kDepth at which a lane's fragment begins, when it is loaded in one piece. Any order of the depth that A
/// and B share gives the same product.
TILEKILN_DEVICE int depth_of([[maybe_unused]] int half) {
#if defined(__GFX11__)
  return 0;
#else
  return kFragment * half;
#endif
}

TILEKILN_DEVICE int lane() { return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0)) & (kLanes - 1); }

/// The value of the lane that shares this one's column.
TILEKILN_DEVICE float other_half(float value) {
#if defined(__GFX11__) || defined(__GFX12__)
  const u32 bits = bit_cast<u32>(value);
  return bit_cast<float>(__builtin_amdgcn_permlanex16(0, bits, 0x76543210u, 0xfedcba98u, 0, 0));
#else
  return bit_cast<float>(__builtin_amdgcn_ds_bpermute((lane() ^ kHalf) << 2, bit_cast<int>(value)));
#endif
}

// --- memory ---
/// A buffer whose reads past `bytes` give 0.
TILEKILN_DEVICE __amdgpu_buffer_rsrc_t buffer(const void* memory, int bytes) {
#if defined(__GFX11__) || defined(__GFX12__)
  return __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(memory), 0, bytes, 0x31004000);
#else
  return __builtin_amdgcn_make_buffer_rsrc(const_cast<void*>(memory), 0, bytes, 0x00020000);
#endif
}

/// Every wave of the workgroup has written to LDS what others read after this.
TILEKILN_DEVICE void publish() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup", "local");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup", "local");
}

/// Publishes among the lanes of one wave: its LDS operations are done in order, so that only the compiler must keep it.
TILEKILN_DEVICE void publish_to_wave() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}

// --- arithmetic ---
constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
constexpr float kInfinity = __builtin_inff();
TILEKILN_DEVICE float exp2(float x) { return __builtin_amdgcn_exp2f(x); }
TILEKILN_DEVICE float log2(float x) { return __builtin_amdgcn_logf(x); }
TILEKILN_DEVICE float reciprocal(float x) { return __builtin_amdgcn_rcpf(x); }
TILEKILN_DEVICE float max(float a, float b) { return __builtin_fmaxf(a, b); }
TILEKILN_DEVICE int min(int a, int b) { return b < a ? b : a; }
TILEKILN_DEVICE int max(int a, int b) { return a < b ? b : a; }

/// tanh x, as exact for small x as for large: x - x^3/3 + 2x^5/15 - 17x^7/315 below 1/4, else 1 - 2 / (e^2|x| + 1).
TILEKILN_DEVICE float tanh(float x) {
  const float size = __builtin_fabsf(x), square = x * x;
  const float near = x * (1.f + square * (-1.f / 3 + square * (2.f / 15 - square * (17.f / 315))));
  const float far = 1.f - 2.f * reciprocal(exp2(2.f * kLog2e * size) + 1.f);
  return size < 0.25f ? near : __builtin_copysignf(far, x);
}

/// Set where P is rounded by more than an instruction: bf16 without a conversion of its own.
#ifdef __gfx950__
constexpr bool kRoundsByHand = false;
#else
constexpr bool kRoundsByHand = kBf16;
#endif

/// Bits of a float >= 0 whose upper half is it as bf16: to even, or halves up.
TILEKILN_DEVICE float round_even(float a) {
  const u32 bits = bit_cast<u32>(a);
  return bit_cast<float>(bits + 0x7fffu + (bits >> 16 & 1));
}
TILEKILN_DEVICE float round_up(float a) { return bit_cast<float>(bit_cast<u32>(a) + 0x8000u); }

/// Two values as 16 bits each, to even. With kCut, and where they are rounded by hand, their upper halves.
template <bool kCut> TILEKILN_DEVICE u32 pack(float a, float b) {
  if constexpr (kCut && kRoundsByHand) return __builtin_amdgcn_perm(bit_cast<u32>(b), bit_cast<u32>(a), 0x07060302u);
  return bit_cast<u32>(T2{T(a), T(b)});
}

/// e4m3 of a number, rounded to nearest even and saturated. Not every architecture has an instruction for it, and
/// gfx942's is of another e4m3.
TILEKILN_DEVICE u32 as_fp8(float x) {
  const float size = __builtin_fabsf(x);
  const u32 bits = bit_cast<u32>(size), rounded = (bits + 0x7ffffu + (bits >> 20 & 1)) - (120u << 23);
  const u32 normal = size >= 448.f ? 0x7eu : rounded >> 20;
  const u32 tiny = u32(int(__builtin_rintf(size * 512.f)));  // steps of 2^-9
  const u32 number = size < 0x1p-6f ? tiny : normal;
  return (size != size ? 0x7fu : number) | (bit_cast<u32>(x) >> 24 & 0x80u);
}

/// core::philox of kernels/backends/philox.h on the device: Philox-4x32 with 7 rounds.
TILEKILN_DEVICE U4 philox(u64 seed, u64 counter, u32 row32, u32 key32) {
  u32 c0 = u32(counter), c1 = u32(counter >> 32), c2 = row32, c3 = key32;
  u32 k0 = u32(seed), k1 = u32(seed >> 32);
  asm volatile("" : "+s"(k0), "+s"(k1));  // else the keys of all rounds are kept in registers through the main loop
#pragma unroll
  for (int round = 0; round < core::kPhiloxRounds; round++) {
    const u64 x = u64(c0) * core::kPhiloxMultiplier0, y = u64(c2) * core::kPhiloxMultiplier1;
    c0 = u32(y >> 32) ^ c1 ^ k0;
    c1 = u32(y);
    c2 = u32(x >> 32) ^ c3 ^ k1;
    c3 = u32(x);
    k0 += core::kPhiloxWeyl0;
    k1 += core::kPhiloxWeyl1;
  }
  return U4{c0, c1, c2, c3};
}

}  // namespace tilekiln::hip
