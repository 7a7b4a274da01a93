// SPDX-License-Identifier: MIT
// The running softmax of two rows of a lane: scores become weights 2^(a s - a max), and sums and their factor follow.
//
// Layout: element j of a lane is of row half j / 2 % 2, column 8 (j / 4) + 2 (lane % 4) + j % 2.
#pragma once

#include <type_traits>

#include "kernels/backends/cuda/ptx.h"
#include "kernels/backends/cuda/tile/element.h"

namespace tilekiln::cuda::fmha_fwd {

// Weights are 2^kWeightExponent times what they are, so that those of e4m3 use its range.
constexpr bool kFp8 = BuildElement::kBytes == 1;
constexpr float kWeightExponent = kFp8 ? 8 : 0;

TILEKILN_DEVICE int half_of(int j) { return j >> 1 & 1; }
TILEKILN_DEVICE int column_of(int j) { return (j >> 2) * 8 + (j & 1); }

// Elements of every 8, as bits, whose exp2 is a polynomial: the special function unit makes 16 a clock, and of e4m3 it
// is as busy as the tensor cores at 128 columns; a soft cap takes two of it an element. The polynomial is one for
// weights of 8 or 16 bits (see reference/tolerance.py). More of them lose: d128 of e4m3 822 TFLOP/s without, 884, 873,
// 844 with 1, 2, 3 (8k); d64 640, 623 with 1.
constexpr unsigned kWeighedByFma = std::is_same_v<BuildOut, float> || (HDIM_Q != 128 && HDIM_Q != 192) ? 0 : 0x10;
constexpr unsigned kCappedByFma = 0x0f;

// True where a soft cap alone makes all rows take the same maximum (Params::capped_top). Weights of fp16 have no room
// for that, and PTX that fp16 shares has not, either.
constexpr bool kCappedTop = std::is_same_v<BuildElement, bf16> && !kExchanged;

// 2^(f + n + kWeightExponent) for |f| <= 1 / 2, within 7.5e-5 of itself, of an integer n in the low bits of `rounded`.
TILEKILN_DEVICE float exp2_near(float f, float rounded) {
  constexpr float kUnit = 1 << int(kWeightExponent);
  float y = __fmaf_rn(f, 0.0551716685f * kUnit, 0.242611125f * kUnit);
  y = __fmaf_rn(y, f, 0.693260968f * kUnit);
  y = __fmaf_rn(y, f, 0.999928057f * kUnit);
  return __int_as_float(__float_as_int(y) + (__float_as_int(rounded) << 23));
}

constexpr float kRound = 12582912.f;  // 1.5 2^23: what is added to it is rounded to an integer, in the low bits

// 2^(126 (u - 1) + kWeightExponent) for u of [0, 1].
TILEKILN_DEVICE float exp2_by_fma(float u) {
  const float rounded = __fmaf_rn(u, 126.f, kRound - 126.f);
  return exp2_near(__fmaf_rn(u, 126.f, (kRound - 126.f) - rounded), rounded);
}

struct SoftmaxState {
  float maximum[2] = {-kInfinity, -kInfinity}, sum[2] = {0.f, 0.f};  // of raw scores; of weights
  float correction[2];                                               // what earlier sums must be multiplied with

  // m' = max(m, max_j s_j); c = 2^(a m - a m'); s_j = 2^(a s_j - a m' + kWeightExponent); sum = c sum + sum_j s_j.
  // kByFma: as kWeighedByFma. A weight below 2^-126 is 2^-126 there, so no score may be hidden; NaN stays. keep: m
  // stays.
  template <unsigned kByFma = 0, int N>
  __device__ __forceinline__ void update(float (&s)[N], float a, bool keep = false) {
    float top[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = s[2 * half];
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (half_of(j) == half) most = fmaxf(most, s[j]);
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      most = keep ? maximum[half] : fmaxf(most, maximum[half]);
      top[half] = most == -kInfinity ? 0.f : most * a;
      // A subtraction of its own: fused with the product, c would not be 1 where m stays, tile after tile.
      correction[half] = exp2_approx(__fsub_rn(maximum[half] * a, top[half]));
      maximum[half] = most;
      sum[half] *= correction[half];
      top[half] -= kWeightExponent;
    }
    constexpr float kPart = 1.f / 126;
    const float unit = a * kPart;
    const float from[2] = {1.f - (top[0] + kWeightExponent) * kPart, 1.f - (top[1] + kWeightExponent) * kPart};
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if constexpr (kByFma != 0) {
        if (kByFma >> j % 8 & 1) {
          s[j] = __fmaf_rn(s[j], 0.f, exp2_by_fma(multiply_add_saturated(s[j], unit, from[half_of(j)])));
          continue;
        }
      }
      s[j] = exp2_approx(__fmaf_rn(s[j], a, -top[half_of(j)]));
    }
#pragma unroll
    for (int j = 0; j < N; ++j) sum[half_of(j)] += s[j];
  }
  // update where all rows take `top` for their maximum: scores are in [-1, 1], and 126 >= a + top. NaN becomes NaN or
  // the largest float, whose like no sum of other weights comes near.
  template <int N> __device__ __forceinline__ void update_capped(float (&s)[N], float a, float top) {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (kCappedByFma >> j % 8 & 1) {
        const float rounded = __fmaf_rn(s[j], a, kRound - top);
        s[j] = exp2_near(__fmaf_rn(s[j], a, (kRound - top) - rounded), rounded);
      } else {
        s[j] = exp2_approx(__fmaf_rn(s[j], a, -top));
      }
    }
#pragma unroll
    for (int j = 0; j < N; ++j) sum[half_of(j)] += s[j];
  }
  // Makes the sums those of whole rows: so far they are of a lane's columns.
  __device__ __forceinline__ void reduce() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
    }
  }
};

}  // namespace tilekiln::cuda::fmha_fwd
