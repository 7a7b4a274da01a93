// SPDX-License-Identifier: MIT
// The forward by mma.sync (fmha_fwd/cuda/ampere.h) with functions from Python, between a tile of scores and its
// softmax.
//
// Key tiles of which a mask function shows nothing are neither loaded nor multiplied: every thread asks the function's
// bounds over one of the next kThreads tiles, and the answers lie in shared memory as bits. In tiles that it shows
// whole no pair is asked.
//
// Functions are those of python/tilekiln/api/functions/emit_device.py: kScore and kMask say which there are; what they
// read of tensors by the query alone is its OfQuery.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/ampere.h"
#include "kernels/attention/function/bounds.h"

namespace tilekiln::cuda::fmha_fwd {

using FunctionParams = fmha::FunctionParams<AmpereParams>;
using scalars::Truth;

template <class Functions> struct OwnFunctions {
  static constexpr bool kThere = true;
  // Bits of tiles: those that are shown, and those of these that are shown in part.
  struct Map { uint32_t shown[kWarps], part[kWarps]; };

  const FunctionParams& a;
  const Tile& tile;
  Map& map;
  int first;  // tile of the map

  TILEKILN_DEVICE OwnFunctions of(const AmpereParams& a, const Tile& tile) {
    __shared__ Map map;
    return {static_cast<const FunctionParams&>(a), tile, map, -1};
  }

  static __device__ __forceinline__ bool bit(const uint32_t (&of)[kWarps], int at) {
    return of[at / 32] >> at % 32 & 1;
  }

  // True where a pair of tile n may be seen. All threads ask for the same tile.
  __device__ __forceinline__ bool shows(int n) {
    if constexpr (Functions::kMask) {
      const int begin = n / kThreads * kThreads;
      if (begin != first) fill(begin);
      return bit(map.shown, n - first);
    }
    return true;
  }
  // True where a pair of tile n may be hidden, of one that is shown. Asked before a tile of another map is.
  __device__ __forceinline__ bool part(int n) const { return Functions::kMask && bit(map.part, n - first); }

  __device__ __forceinline__ void fill(int begin) {
    const int n = begin + int(threadIdx.x), warp = int(threadIdx.x) / 32;
    Truth truth = {false, false};
    if (n * kKeys < tile.seqlen_k)
      truth = Functions::bounds(a.tensor, {tile.row, min(kQueryRows, tile.seqlen_q - tile.row), n * kKeys,
                                           min(kKeys, tile.seqlen_k - n * kKeys), tile.h, tile.b});
    __syncthreads();  // all have read the map before
    const uint32_t shown = __ballot_sync(~0u, truth.may_hold), part = __ballot_sync(~0u, truth.may_fail);
    if (threadIdx.x % 32 == 0) map.shown[warp] = shown, map.part[warp] = part;
    __syncthreads();
    first = begin;
  }

  // Scores of a warp's 16 rows from `warp_row` on become logits, those of hidden pairs -inf.
  template <int N>
  __device__ __forceinline__ void change(float (&s)[N], const Tile& tile, int warp_row, int key, bool part) const {
    const int lane = int(threadIdx.x) & 31, h = tile.h, b = tile.b;
    const int q = tile.row + warp_row + (lane >> 2), from_key = key + (lane & 3) * 2;
    const typename Functions::OfQuery held[2] = {Functions::of_query(a.tensor, q, h, b),
                                                 Functions::of_query(a.tensor, q + 8, h, b)};
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int half = half_of(j), k = from_key + column_of(j);
      if constexpr (Functions::kScore)
        s[j] = Functions::score(a.tensor, held[half], s[j] * a.softmax_scale, q + 8 * half, k, h, b);
    }
    if constexpr (Functions::kMask) {
      if (!part) return;
#pragma unroll
      for (int j = 0; j < N; ++j) {
        const int half = half_of(j), k = from_key + column_of(j);
        if (!Functions::sees(a.tensor, held[half], q + 8 * half, k, h, b)) s[j] = -kInfinity;
      }
    }
  }
};

}  // namespace tilekiln::cuda::fmha_fwd
