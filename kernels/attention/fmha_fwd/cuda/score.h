// SPDX-License-Identifier: MIT
// Changes of a tile of scores before its softmax: soft cap, factors, alibi, bias, mask.
//
// Layout: as softmax.h says; a lane's rows are r and r + apart.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/softmax.h"
#include "kernels/attention/fmha_fwd/cuda/tile.h"
#include "kernels/attention/score_changes.h"
#include "kernels/backends/cuda/dropout.h"

namespace tilekiln::cuda::fmha_fwd {

// The copies of the loops. A branch between a product and the wait for it makes ptxas wait at the branch, so what is
// asked for often has a copy of its own without any; kGeneral asks the features: bias, and dropout together with other
// things. e4m3 has kPlain, kScaled (scales of blocks) and kGeneral (soft cap); functions from Python have theirs.
enum Extras : int { kPlain, kCapped, kSloped, kDropped, kGeneral, kScaled, kFunctions };
constexpr int kExtraFeatures = kSoftcap | kAlibi | kBias | kDropout;

// The copies that a tile's key tiles go through, which f is called with: of the first one and of those with a mask, and
// of those without. general: all go through the one with a mask.
template <int kExtras> struct OneCopy {
  static constexpr bool general = kExtras == kGeneral;
  static constexpr int extras = 1 << kExtras;
  template <class F> __device__ __forceinline__ void masked(F&& f) const { f(Constant<kExtras>{}); }
  template <class F> __device__ __forceinline__ void whole(F&& f) const {
    if constexpr (!general) f(Constant<kExtras>{});
  }
};
struct CopyByFeature {
  int extras;
  bool general;
  template <class F> __device__ __forceinline__ void masked(F&& f) const {
    if (extras == 0)
      f(Constant<kPlain>{});
    else
      f(Constant<kGeneral>{});
  }
  template <class F> __device__ __forceinline__ void whole(F&& f) const {
    switch (extras) {
      case 0: f(Constant<kPlain>{}); break;
      case kSoftcap: f(Constant<kCapped>{}); break;
      case kAlibi: f(Constant<kSloped>{}); break;
      default: f(Constant<kDropped>{});
    }
  }
};

// The rows of warp `warp` of a warpgroup of Hopper. With dropout they are those of half of a patch of random bytes
// (DroppedHalf): the loader loads q in that order.
TILEKILN_DEVICE int row_of_warp(const Params& p, int warp) {
  return !kFp8 && features_of(p) & kDropout ? warp / 2 * 32 + warp % 2 * 8 : warp * 16;
}
// Distance from a lane's first row to its second one; `may_drop`: whether this loop can be one of dropout.
TILEKILN_DEVICE int rows_apart(const Params& p, bool may_drop = true) {
  return !kFp8 && may_drop && features_of(p) & kDropout ? 16 : 8;
}

// Alibi: the slope of a tile's head, in units of raw scores, and how far the lane's first row is from its first key of
// key tile 0. A loop without a mask asks for both before it begins: a load from memory in it makes ptxas wait for both
// products at once, and the softmax runs under none (d128 at 8k: 1.18 of a plain call's time).
TILEKILN_DEVICE float slope_of(const Params& p, const Tile& tile) {
  return p.alibi_slopes[field(tile.b) * p.alibi_batch + field(tile.h)] * p.bias_scale;
}
TILEKILN_DEVICE int distance_of(const Tile& tile, int warp_row) {
  const int lane = fresh_lane();
  return field(tile.row) + warp_row + (lane >> 2) + field(tile.shift) - (lane & 3) * 2;
}

// A lane's scores for score_changes.h.
template <int N> TILEKILN_DEVICE auto each_of(float (&s)[N]) {
  return [&](auto&& change) TILEKILN_LAMBDA {
#pragma unroll
    for (int j = 0; j < N; ++j) s[j] = change(s[j], half_of(j), column_of(j));
  };
}
template <int N> TILEKILN_DEVICE void cap(float (&s)[N], const Params& p) { cap_scores(each_of(s), p.softcap_inner); }
template <int N> TILEKILN_DEVICE void slant(float (&s)[N], float slope, float distance, int apart = 8) {
  slant_scores(each_of(s), slope, distance, apart);
}

template <int N> TILEKILN_DEVICE void scale(float (&s)[N], float by) {
#pragma unroll
  for (int j = 0; j < N; ++j) s[j] *= by;
}

// The bias of a warp's 16 rows by 128 keys in shared memory: asked for under the products, 16 bytes a copy. Piece c of
// row r lies at c ^ r % 8.
struct BiasPieces {
  static constexpr int kKeys = 128, kPieces = kKeys / 8, kBytes = 16 * kKeys * 2;
  uint32_t place;

  // Rows from `row` of the tile's sequence on, keys from `key` on. What a lane has read is read by then.
  __device__ __forceinline__ void ask(const Params& p, const Tile& tile, int row, int key) const {
    __syncwarp();
    const int lane = fresh_lane(), c = lane % kPieces, rows = field(tile.seqlen_q) - row;
    const int left = min(max(field(tile.seqlen_k) - key - 8 * c, 0), 8) * 2;
    const uint16_t* const from = p.bias + field(tile.b) * p.bias_batch + field(tile.h) * p.bias_head +
                                 (field(tile.start_q) + row) * p.bias_row + key + 8 * c;
#pragma unroll
    for (int i = 0; i < 16; i += 32 / kPieces) {
      const int r = i + lane / kPieces, bytes = r < rows ? left : 0;
      copy_async_bytes(place + r * (kKeys * 2) + ((c ^ (r & 7)) << 4), bytes > 0 ? from + r * p.bias_row : p.bias,
                       bytes);
    }
    copy_async_commit();
  }
  // s += scale bias of what was asked for.
  template <int N> __device__ __forceinline__ void add(float (&s)[N], float scale) const {
    static_assert(N == kKeys / 2);
    copy_async_wait<0>();
    __syncwarp();
    const int lane = fresh_lane(), r = lane >> 2;
    const uint32_t line = place + r * (kKeys * 2) + (lane & 3) * 4;
#pragma unroll
    for (int j = 0; j < N; j += 2) {
      float low, high;
      unpack(load_shared_word(line + half_of(j) * (8 * kKeys * 2) + ((j / 4 ^ r) << 4)), low, high);
      s[j] += scale * low, s[j + 1] += scale * high;
    }
  }
};

// Soft cap, alibi and s += bias_scale bias, as the features say; not the bias of kBiasPieces.
template <int N> TILEKILN_DEVICE void change(float (&s)[N], const Params& p, const Tile& tile, int warp_row, int key,
                                             int apart = 8) {
  const int lane = fresh_lane(), b = field(tile.b), h = field(tile.h);
  const int row = field(tile.row) + warp_row + (lane >> 2), from_key = key + (lane & 3) * 2;
  if (features_of(p) & kSoftcap) cap(s, p);
  if (features_of(p) & kAlibi) slant(s, slope_of(p, tile), distance_of(tile, warp_row) - key, apart);
  if ((features_of(p) & (kBias | kBiasPieces)) == kBias) {
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
template <int N> TILEKILN_DEVICE void mask(float (&s)[N], const Params& p, const Tile& tile, int warp_row, int key,
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

}  // namespace tilekiln::cuda::fmha_fwd
