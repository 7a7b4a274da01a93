// A tile of scores becomes a tile of weights: soft cap, bias, alibi, mask, running maximum, exp2, sum.
//
// Layout: a lane holds rows r and r + 8 (half = 0, 1); element j is column 8 (j / 4) + 2 (lane % 4) + j % 2 of half j / 2 % 2.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/tile.h"
#include "kernels/backends/cuda/dropout.h"

namespace tilekiln::cuda::fmha_fwd {

// The copies of the loops. A branch between a product and the wait for it makes ptxas wait at the branch, so what is asked for often
// has a copy of its own without any; kGeneral asks the features: bias, and dropout together with other things.
// Of e4m3 there are kPlain, kScaled (scales of blocks) and kGeneral (soft cap).
enum Extras : int { kPlain, kCapped, kSloped, kDropped, kGeneral, kScaled };

// Weights are 2^kWeightExponent times what they are, so that those of e4m3 use its range.
#ifdef TILEKILN_FP8
constexpr bool kFp8 = true;
constexpr float kWeightExponent = 8;
#else
constexpr bool kFp8 = false;
constexpr float kWeightExponent = 0;
#endif

// The rows of warp `warp` of a warpgroup of Hopper. With dropout they are those of half of a patch of random bytes (DroppedHalf): the
// loader loads q in that order.
TILEKILN_DEVICE int row_of_warp(const Row& p, int warp) {
  return !kFp8 && features_of(p) & kDropout ? warp / 2 * 32 + warp % 2 * 8 : warp * 16;
}
// From a lane's first row to its second one; `may_drop`: whether the loop at hand can be one of dropout.
TILEKILN_DEVICE int rows_apart(const Row& p, bool may_drop = true) {
  return !kFp8 && may_drop && features_of(p) & kDropout ? 16 : 8;
}

TILEKILN_DEVICE int half_of(int j) { return j >> 1 & 1; }
TILEKILN_DEVICE int column_of(int j) { return (j >> 2) * 8 + (j & 1); }

// The running softmax of two rows: maximum of raw scores, sum of weights, and what earlier sums must be multiplied with.
struct Running { float maximum[2] = {-kInfinity, -kInfinity}, sum[2] = {0.f, 0.f}, correction[2]; };

// Of alibi: the slope of a tile's head, in units of raw scores, and how far the lane's first row is from its first key of key tile 0.
// A loop without a mask asks for both before it begins: a load from memory in it makes ptxas wait for both products at once, and the
// softmax runs under none (d128 at 8k: 1.18 of a plain call's time).
TILEKILN_DEVICE float slope_of(const Row& p, const Tile& tile) {
  return p.alibi_slopes[field(tile.b) * p.alibi_batch + field(tile.h)] * p.bias_scale;
}
TILEKILN_DEVICE int distance_of(const Tile& tile, int warp_row) {
  const int lane = fresh_lane();
  return field(tile.row) + warp_row + (lane >> 2) + field(tile.shift) - (lane & 3) * 2;
}

// Of 8 elements those, as bits, whose exp2 is a polynomial: the special function unit makes 16 a clock, and of e4m3 it is as busy as the
// tensor cores at 128 columns; a soft cap takes two of it an element. The polynomial is one for weights of 8 or 16 bits (see
// reference/tolerance.py). More of them lose: d128 of e4m3 822 TFLOP/s without, 884, 873, 844 with 1, 2, 3 (8k); d64 640, 623 with 1.
#ifdef TILEKILN_FP32
constexpr unsigned kWeighedByFma = 0;
#else
constexpr unsigned kWeighedByFma = HDIM_Q == 128 || HDIM_Q == 192 ? 0x10 : 0;
#endif
constexpr unsigned kCappedByFma = 0x0f;

// Whether a soft cap alone makes all rows take the same maximum (Row::capped_top). Weights of fp16 have no room for that, and PTX that
// fp16 shares has not, either.
#if defined(TILEKILN_FP16) || defined(TILEKILN_FP8) || defined(TILEKILN_EXCHANGED)
constexpr bool kCappedTop = false;
#else
constexpr bool kCappedTop = true;
#endif

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

template <int N> struct Scores {
  static __device__ __forceinline__ void cap(float (&s)[N], const Row& p) {  // s = tanh(softcap_inner s)
#pragma unroll
    for (int j = 0; j < N; ++j) s[j] = tanh_approx(s[j] * p.softcap_inner);
  }

  static __device__ __forceinline__ void scale(float (&s)[N], float by) {
#pragma unroll
    for (int j = 0; j < N; ++j) s[j] *= by;
  }

  // s -= slope |distance - column|, `distance` from the lane's first row and its first key of the tile.
  static __device__ __forceinline__ void slant(float (&s)[N], float slope, float distance, int apart = 8) {
#pragma unroll
    for (int j = 0; j < N; ++j) s[j] -= slope * fabsf(distance + float(half_of(j) * apart - column_of(j)));
  }

  // Soft cap, alibi and s += bias_scale bias, as the features say.
  static __device__ __forceinline__ void change(float (&s)[N], const Row& p, const Tile& tile, int warp_row, int key,
                                                int apart = 8) {
    const int lane = fresh_lane(), b = field(tile.b), h = field(tile.h);
    const int row = field(tile.row) + warp_row + (lane >> 2), from_key = key + (lane & 3) * 2;
    if (features_of(p) & kSoftcap) cap(s, p);
    if (features_of(p) & kAlibi) slant(s, slope_of(p, tile), distance_of(tile, warp_row) - key, apart);
    if (features_of(p) & kBias) {
      const int end = field(tile.seqlen_k) - from_key;
      const uint16_t* line =
          p.bias + b * p.bias_batch + h * p.bias_head + (field(tile.start_q) + row) * p.bias_row + from_key;
#pragma unroll
      for (int half = 0; half < 2; ++half, line += apart * p.bias_row) {
        const int inside = row + apart * half < field(tile.seqlen_q) ? end : 0;
#pragma unroll
        for (int j = 0; j < N; ++j)
          if (half_of(j) == half) s[j] += p.bias_scale * element(load_if(column_of(j) < inside, line + column_of(j)));
      }
    }
  }

  // Keys outside of [i + shift - left, i + shift + right] and past the sequence become -inf; keys below sink_keys stay.
  static __device__ __forceinline__ void mask(float (&s)[N], const Row& p, const Tile& tile, int warp_row, int key,
                                              int apart = 8) {
    const int lane = fresh_lane(), from_key = key + (lane & 3) * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int centre = field(tile.row) + warp_row + (lane >> 2) + apart * half + field(tile.shift);
      const int end = min(field(tile.seqlen_k), centre + p.right + 1) - from_key;
      const int begin = centre - p.left - from_key, sinks = p.sink_keys - from_key;
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (half_of(j) == half && (column_of(j) >= end || (column_of(j) < begin && column_of(j) >= sinks)))
          s[j] = -kInfinity;
    }
  }

  // The same where all rows take `top` for their maximum: scores are in [-1, 1], and 126 >= a + top. NaN becomes NaN or the largest
  // float, whose like no sum of other weights comes near.
  static __device__ __forceinline__ void weigh_capped(float (&s)[N], float a, float top, Running& r) {
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
    for (int j = 0; j < N; ++j) r.sum[half_of(j)] += s[j];
  }

  // m' = max(m, max_j s_j); c = 2^(a m - a m'); s_j = 2^(a s_j - a m' + kWeightExponent); sum = c sum + sum_j s_j.
  // kByFma: as kWeighedByFma. A weight below 2^-126 is 2^-126 there, so no score may be hidden; NaN stays. keep: m stays.
  template <unsigned kByFma = 0>
  static __device__ __forceinline__ void weigh(float (&s)[N], float a, Running& r, bool keep = false) {
    float top[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = s[2 * half];
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (half_of(j) == half) most = fmaxf(most, s[j]);
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      most = keep ? r.maximum[half] : fmaxf(most, r.maximum[half]);
      top[half] = most == -kInfinity ? 0.f : most * a;
      // A subtraction of its own: fused with the product, c would not be 1 where m stays, tile after tile.
      r.correction[half] = exp2_approx(__fsub_rn(r.maximum[half] * a, top[half]));
      r.maximum[half] = most;
      r.sum[half] *= r.correction[half];
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
    for (int j = 0; j < N; ++j) r.sum[half_of(j)] += s[j];
  }
};

}  // namespace tilekiln::cuda::fmha_fwd
