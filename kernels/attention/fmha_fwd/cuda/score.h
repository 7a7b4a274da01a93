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

TILEKILN_DEVICE int half_of(int j) { return j >> 1 & 1; }
TILEKILN_DEVICE int column_of(int j) { return (j >> 2) * 8 + (j & 1); }

// The running softmax of two rows: maximum of raw scores, sum of weights, and what earlier sums must be multiplied with.
struct Running { float maximum[2] = {-kInfinity, -kInfinity}, sum[2] = {0.f, 0.f}, correction[2]; };

// Weights are 2^kWeightExponent times what they are, so that those of e4m3 use its range.
#ifdef TILEKILN_FP8
constexpr bool kFp8 = true;
constexpr float kWeightExponent = 8;
#else
constexpr bool kFp8 = false;
constexpr float kWeightExponent = 0;
#endif

template <int N> struct Scores {
  static __device__ __forceinline__ void cap(float (&s)[N], const Row& p) {  // s = softcap tanh(softcap_inner s)
#pragma unroll
    for (int j = 0; j < N; ++j) s[j] = tanh_approx(s[j] * p.softcap_inner) * p.softcap;
  }

  static __device__ __forceinline__ void scale(float (&s)[N], float by) {
#pragma unroll
    for (int j = 0; j < N; ++j) s[j] *= by;
  }

  // s -= bias_scale slope |row + shift - key|. warp_row: from the tile's first row.
  static __device__ __forceinline__ void slope(float (&s)[N], const Row& p, const Tile& tile, int warp_row, int key) {
    const int lane = fresh_lane(), row = field(tile.row) + warp_row + (lane >> 2);
    const float slope = p.alibi_slopes[field(tile.b) * p.alibi_batch + field(tile.h)] * p.bias_scale;
    const float distance = float(row + field(tile.shift) - key - (lane & 3) * 2);
#pragma unroll
    for (int j = 0; j < N; ++j) s[j] -= slope * fabsf(distance + float(half_of(j) * 8 - column_of(j)));
  }

  // Soft cap, alibi and s += bias_scale bias, as the features say.
  static __device__ __forceinline__ void change(float (&s)[N], const Row& p, const Tile& tile, int warp_row, int key) {
    const int lane = fresh_lane(), b = field(tile.b), h = field(tile.h);
    const int row = field(tile.row) + warp_row + (lane >> 2), from_key = key + (lane & 3) * 2;
    if (features_of(p) & kSoftcap) cap(s, p);
    if (features_of(p) & kAlibi) slope(s, p, tile, warp_row, key);
    if (features_of(p) & kBias) {
      const int end = field(tile.seqlen_k) - from_key;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = row + 8 * half;
        const uint16_t* line =
            p.bias + b * p.bias_batch + h * p.bias_head + (field(tile.start_q) + at) * p.bias_row + from_key;
        const int inside = at < field(tile.seqlen_q) ? end : 0;
#pragma unroll
        for (int j = 0; j < N; ++j)
          if (half_of(j) == half) s[j] += p.bias_scale * element(load_if(column_of(j) < inside, line + column_of(j)));
      }
    }
  }

  // Keys outside of [i + shift - left, i + shift + right] and past the sequence become -inf; keys below sink_keys stay.
  static __device__ __forceinline__ void mask(float (&s)[N], const Row& p, const Tile& tile, int warp_row, int key) {
    const int lane = fresh_lane(), from_key = key + (lane & 3) * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int centre = field(tile.row) + warp_row + (lane >> 2) + 8 * half + field(tile.shift);
      const int end = min(field(tile.seqlen_k), centre + p.right + 1) - from_key;
      const int begin = centre - p.left - from_key, sinks = p.sink_keys - from_key;
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (half_of(j) == half && (column_of(j) >= end || (column_of(j) < begin && column_of(j) >= sinks)))
          s[j] = -kInfinity;
    }
  }

  // m' = max(m, max_j s_j); c = 2^(a m - a m'); s_j = 2^(a s_j - a m' + kWeightExponent); sum = c sum + sum_j s_j.
  static __device__ __forceinline__ void weigh(float (&s)[N], float a, Running& r) {
    float top[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = s[2 * half];
#pragma unroll
      for (int j = 0; j < N; ++j)
        if (half_of(j) == half) most = fmaxf(most, s[j]);
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      most = fmaxf(most, r.maximum[half]);
      top[half] = most == -kInfinity ? 0.f : most * a;
      r.correction[half] = exp2_approx(r.maximum[half] * a - top[half]);
      r.maximum[half] = most;
      r.sum[half] *= r.correction[half];
      top[half] -= kWeightExponent;
    }
#pragma unroll
    for (int j = 0; j < N; ++j) s[j] = exp2_approx(__fmaf_rn(s[j], a, -top[half_of(j)]));
#pragma unroll
    for (int j = 0; j < N; ++j) r.sum[half_of(j)] += s[j];
  }
};

}  // namespace tilekiln::cuda::fmha_fwd
