// SPDX-License-Identifier: MIT
// Operands of a product whose second factor is the accumulator of the product before: S^T into P^T V, S into dO^T P.
#pragma once
#include "kernels/backends/hip/vocabulary.h"

namespace tilekiln::hip {

/// The second operand: kDepth rows of one accumulator, `part` of kRows / kDepth, by `pack`.
template <bool kCut> TILEKILN_DEVICE Fragment of_accumulator(const Accumulator& s, [[maybe_unused]] int part,
                                                             [[maybe_unused]] int half) {
  u32 words[kFragment / 2];
#if defined(__GFX11__)  // rows alternate between the halves, and both hold them all
#pragma unroll
  for (int r = 0; r < 8; r++) {
    const float mine = s[r], other = other_half(mine);
    words[r] = pack<kCut>(half ? other : mine, half ? mine : other);
  }
#else
#pragma unroll
  for (int i = 0; i < kFragment / 2; i++)
    words[i] = pack<kCut>(s[part * kFragment + 2 * i], s[part * kFragment + 2 * i + 1]);
#endif
  Fragment made;
  __builtin_memcpy(&made, words, sizeof made);
  return made;
}

/// The first operand: the same rows of the depth from `row`, a line of LDS with the depth contiguous.
TILEKILN_DEVICE Fragment to_meet(const T* row, [[maybe_unused]] int part, [[maybe_unused]] int half) {
#if defined(__gfx950__)
  const T4 low = *(const T4*)(row + 16 * part + 4 * half), high = *(const T4*)(row + 16 * part + 8 + 4 * half);
  return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
#elif defined(__GFX11__)
  return *(const Fragment*)row;
#elif defined(__GFX12__)
  return *(const Fragment*)(row + 8 * half);
#else
  return *(const Fragment*)(row + 8 * part + 4 * half);
#endif
}

#if FP8
using Element = unsigned char;  // of q in memory: e4m3, e4m3fnuz or e5m2fnuz
#else
using Element = T;
#endif
#if FP8 || KV_FP8
using KeyElement = unsigned char;  // of k and v in memory
using Eight = U2;

#if KV_FP8  // bf16 holds them all
constexpr float kOfWidened = 1.f;
TILEKILN_DEVICE u32 upper_halves(float low, float high) {
  return __builtin_amdgcn_perm(bit_cast<u32>(high), bit_cast<u32>(low), 0x07060302u);
}
#if TILEKILN_CONVERTS_FP8
TILEKILN_DEVICE U2 widen_four(u32 bytes) {
  const Float2 low = __builtin_amdgcn_cvt_pk_f32_fp8(bytes, false), high = __builtin_amdgcn_cvt_pk_f32_fp8(bytes, true);
  return U2{upper_halves(low[0], low[1]), upper_halves(high[0], high[1])};
}
#else
/// bf16 holds e4m3 times 2^-120 under other exponents: the same bits, four places lower. A NaN would be 480: all its
/// bits are set.
TILEKILN_DEVICE u32 widen_two(u32 in_high_bytes) {
  const u32 bits = (in_high_bytes & 0x80008000u) | (in_high_bytes >> 4 & 0x07f007f0u);
  const u32 nan = ((in_high_bytes & 0x7f007f00u) + 0x01000100u) >> 15 & 0x00010001u;
  const float low = bit_cast<float>(bits << 16) * 0x1p120f, high = bit_cast<float>(bits & 0xffff0000u) * 0x1p120f;
  return upper_halves(low, high) | ((nan << 15) - nan);
}
#endif
#elif TILEKILN_NATIVE_FP8
constexpr float kOfWidened = 1.f;
TILEKILN_DEVICE u32 widen_two(u32 bytes, bool upper) {
#if FNUZ == 2
  const Float2 two =
      upper ? __builtin_amdgcn_cvt_pk_f32_bf8(bytes, true) : __builtin_amdgcn_cvt_pk_f32_bf8(bytes, false);
#else
  const Float2 two =
      upper ? __builtin_amdgcn_cvt_pk_f32_fp8(bytes, true) : __builtin_amdgcn_cvt_pk_f32_fp8(bytes, false);
#endif
  return bit_cast<u32>(__builtin_amdgcn_cvt_pkrtz(two[0], two[1]));  // exact: fp16 holds them all
}
TILEKILN_DEVICE U2 widen_four(u32 bytes) { return U2{widen_two(bytes, false), widen_two(bytes, true)}; }
#else
/// fp16 holds e4m3 times 2^-8 under other exponents: the same bits, one place lower. By 146 in place of 1 the product
/// with 2^8 is exact, and of a NaN, which would be 480, infinity; infinity times 0 makes it NaN again.
constexpr float kOfWidened = 1.f / 146;
TILEKILN_DEVICE u32 widen_two(u32 in_high_bytes) {
  const u32 bits = (in_high_bytes & 0x80008000u) | (in_high_bytes >> 1 & 0x3f803f80u);
  const T2 scaled = bit_cast<T2>(bits) * T2{T(146.f * 256), T(146.f * 256)};
  T2 made;
  asm("v_pk_fma_f16 %0, %1, 0, %1" : "=v"(made) : "v"(scaled));  // the compiler would take it for a copy
  return bit_cast<u32>(made);
}
#endif
#if !TILEKILN_CONVERTS_FP8
TILEKILN_DEVICE U2 widen_four(u32 bytes) {
  return U2{widen_two(__builtin_amdgcn_perm(0, bytes, 0x010c000cu)),
            widen_two(__builtin_amdgcn_perm(0, bytes, 0x030c020cu))};
}
#endif
TILEKILN_DEVICE U4 widen(U2 eight) {
  const U2 low = widen_four(eight[0]), high = widen_four(eight[1]);
  return U4{low[0], low[1], high[0], high[1]};
}
TILEKILN_DEVICE Eight load_eight(__amdgpu_buffer_rsrc_t from, int at) {
  return __builtin_amdgcn_raw_buffer_load_b64(from, at, 0, 0);
}
#else
using KeyElement = T;
using Eight = U4;
constexpr float kOfWidened = 1.f;
TILEKILN_DEVICE U4 widen(U4 eight) { return eight; }
TILEKILN_DEVICE Eight load_eight(__amdgpu_buffer_rsrc_t from, int at) {
  return __builtin_amdgcn_raw_buffer_load_b128(from, at, 0, 0);
}
#endif

/// Eight elements of q, or of what else has its dtype, as T.
TILEKILN_DEVICE U4 eight_of_memory(__amdgpu_buffer_rsrc_t from, int at) {
#if FP8
  return widen(load_eight(from, at));
#else
  return __builtin_amdgcn_raw_buffer_load_b128(from, at, 0, 0);
#endif
}

/// kFragment columns of one row in memory from `column` on, 0 past the head dim and past the buffer.
TILEKILN_DEVICE Fragment of_memory(__amdgpu_buffer_rsrc_t rows, int row_bytes, int column, int hdim) {
  Fragment made;
  constexpr int size = sizeof(Element);
#if defined(__gfx90a__) || defined(__gfx942__)
  const int at = column < hdim ? row_bytes + column * size : 0x7fffffff;
#if FP8
  const U2 four = widen_four(__builtin_amdgcn_raw_buffer_load_b32(rows, at, 0, 0));
#else
  const U2 four = __builtin_amdgcn_raw_buffer_load_b64(rows, at, 0, 0);
#endif
  __builtin_memcpy(&made, &four, sizeof made);
#else
  U4 eights[kFragment / 8];  // head dims are multiples of 8
#pragma unroll
  for (int i = 0; i < kFragment / 8; i++) {
    eights[i] = eight_of_memory(rows, column + 8 * i < hdim ? row_bytes + (column + 8 * i) * size : 0x7fffffff);
  }
  __builtin_memcpy(&made, eights, sizeof made);
#endif
  return made;
}

// --- S^T = K Q^T: its operands as q and k lie in memory, where the unit multiplies them so, else as T ---
#if TILEKILN_NATIVE_FP8
using Score = Element;  // of K in LDS
using ScoreFragment = U2;
using ScoreEight = U2;
constexpr int kScoreDepth = 16;
TILEKILN_DEVICE int score_depth_of(int half) { return 8 * half; }
TILEKILN_DEVICE ScoreEight for_scores(Eight eight) { return eight; }
TILEKILN_DEVICE Accumulator multiply_scores(U2 a, U2 b, Accumulator c) {
#if defined(__GFX12__)
  using I2 = int __attribute__((ext_vector_type(2)));
  return __builtin_amdgcn_wmma_f32_16x16x16_fp8_fp8_w32_gfx12(bit_cast<I2>(a), bit_cast<I2>(b), c);
#elif FNUZ == 2
  return __builtin_amdgcn_mfma_f32_32x32x16_bf8_bf8(bit_cast<i64>(a), bit_cast<i64>(b), c, 0, 0, 0);
#else
  return __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(bit_cast<i64>(a), bit_cast<i64>(b), c, 0, 0, 0);
#endif
}
TILEKILN_DEVICE ScoreFragment q_of_memory(__amdgpu_buffer_rsrc_t rows, int row_bytes, int column, int hdim) {
  return load_eight(rows, column < hdim ? row_bytes + column : 0x7fffffff);
}
#else
using Score = T;
using ScoreFragment = Fragment;
using ScoreEight = U4;
constexpr int kScoreDepth = kDepth;
TILEKILN_DEVICE int score_depth_of(int half) { return depth_of(half); }
TILEKILN_DEVICE ScoreEight for_scores(Eight eight) { return widen(eight); }
TILEKILN_DEVICE Accumulator multiply_scores(Fragment a, Fragment b, Accumulator c) { return multiply_add(a, b, c); }
TILEKILN_DEVICE ScoreFragment q_of_memory(__amdgpu_buffer_rsrc_t rows, int row_bytes, int column, int hdim) {
  return of_memory(rows, row_bytes, column, hdim);
}
#endif

}  // namespace tilekiln::hip
