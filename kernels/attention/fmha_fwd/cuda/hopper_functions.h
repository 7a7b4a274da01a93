// SPDX-License-Identifier: MIT
// Functions from Python in the forward on Hopper: the key tiles that a mask shows, as bits, and the change of scores.
//
// The warp that deals tiles out asks the mask's bounds over 32 key tiles at once. Loaders and consumers go down the
// bits, so what is hidden is neither loaded nor multiplied; consumers look at pairs in tiles that are shown in part.
// A kernel without functions has nothing of this.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/score.h"
#include "kernels/attention/function/tensor.h"

namespace tilekiln::cuda::fmha_fwd {

#ifdef TILEKILN_FUNCTIONS
using Functions = own::Functions;
using Argument = fmha::FunctionParams<Params>;
#else
struct Functions { static constexpr bool kScore = false, kMask = false; };
using Argument = Params;
#endif
constexpr bool kOwn = Functions::kScore || Functions::kMask, kMapped = Functions::kMask;

// Key tiles that functions and window show to a CTA's rows, and those of these that they show in part. Where there are
// more than bits, a bit is 1 << shift tiles.
struct KeyMap {
  static constexpr int kWords = 32;
  uint32_t shown[kWords], part[kWords];
  int shift, last, count;  // tiles are [0, last); bits that are shown

  // The shown tile that comes at n or next below it; -1: none.
  __device__ __forceinline__ int from(int n) const {
    if (n < 0) return -1;
    int at = n >> shift, word = at / 32;
    uint32_t bits = shown[word] & ~0u >> (31 - at % 32);
    while (bits == 0 && word > 0) bits = shown[--word];
    at = 32 * word + 31 - __clz(int(bits));
    return bits == 0 ? -1 : min(n, (at + 1 << shift) - 1);
  }
  // The lowest; 0 where none is shown.
  __device__ __forceinline__ int lowest() const {
    for (int word = 0; 32 * word << shift < last; ++word)
      if (shown[word] != 0) return 32 * word + __clz(int(__brev(shown[word]))) << shift;
    return 0;
  }
  __device__ __forceinline__ bool is_part(int n) const { return part[n >> shift + 5] >> ((n >> shift) & 31) & 1; }

  // Fills it, a warp together, for a tile.
  template <int kQueryRows, int kKeys, class F = Functions, class A = Argument>
  __device__ __forceinline__ void fill(const Params& p, const Tile& tile, int lane) {
    const A& a = static_cast<const A&>(p);
    const int tiles = KeyRange::tiles<kKeys>(tile.seqlen_k), rows = min(kQueryRows, tile.seqlen_q - tile.row);
    int by = 0, found = 0;
    while (tiles - 1 >> by >= 32 * kWords) ++by;
    KeyRange whole = {0, tile.seqlen_k / kKeys, 0};
    if (features_of(a) & fmha_fwd::kMask)
      whole = KeyRange::whole<kKeys>(mask_of(a, tile.shift), tile.row, kQueryRows, tile.seqlen_k, 0);
    for (int word = 0; 32 * word << by < tiles; ++word) {
      const int first = 32 * word + lane << by, end = min(first + (1 << by), tiles);
      bool holds = (first < tile.range.last && end > tile.range.first) || first < tile.range.sinks;
      bool fails = first < whole.first || end > whole.last;
      if constexpr (F::kMask) {
        if (first < end && holds) {
          const int key = first * kKeys, keys = min(end * kKeys, tile.seqlen_k) - key;
          const auto truth = F::bounds(a.tensor, {tile.row, rows, key, keys, tile.h, tile.b});
          holds = truth.may_hold, fails |= truth.may_fail;
        }
      }
      const uint32_t some = __ballot_sync(~0u, holds && first < end), in_part = __ballot_sync(~0u, fails);
      if (lane == 0) shown[word] = some, part[word] = in_part;
      found += __popc(some);
    }
    if (lane == 0) shift = by, last = tile.range.last, count = found;
    __syncwarp();
  }
};

template <int kSlots> struct KeyMaps {
  KeyMap maps[kSlots];
  __device__ __forceinline__ KeyMap& map(uint32_t tile) { return maps[tile % kSlots]; }
};
// Nobody asks for one.
struct NoKeyMaps {
  static __device__ __forceinline__ KeyMap& map(uint32_t) { __builtin_unreachable(); }
};

// A lane's scores: of two rows, q and q + 8, of keys from `key` on, as softmax.h says.
template <class F, class A> struct OwnScores {
  const A& a;
  const int h, b, q;
  const typename F::OfQuery held[2];

  __device__ __forceinline__ OwnScores(const Params& p, const Tile& tile, int warp_row)
      : OwnScores(static_cast<const A&>(p), field(tile.h), field(tile.b),
                  field(tile.row) + warp_row + (fresh_lane() >> 2)) {}
  __device__ __forceinline__ OwnScores(const A& a, int h, int b, int q)
      : a(a), h(h), b(b), q(q), held{F::of_query(a.tensor, q, h, b), F::of_query(a.tensor, q + 8, h, b)} {}

  // Scores become logits, those of hidden pairs -inf where kMasked.
  template <bool kMasked, int N> __device__ __forceinline__ void change(float (&s)[N], int key) const {
    const int from_key = key + (fresh_lane() & 3) * 2;
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const int half = half_of(j), k = from_key + column_of(j);
      if constexpr (F::kScore) s[j] = F::score(a.tensor, held[half], s[j] * a.softmax_scale, q + 8 * half, k, h, b);
      if constexpr (kMasked && F::kMask)
        if (!F::sees(a.tensor, held[half], q + 8 * half, k, h, b)) s[j] = -kInfinity;
    }
  }
};
// Nothing is asked of it.
struct NoScores {
  __device__ __forceinline__ NoScores(const Params&, const Tile&, int) {}
  template <bool kMasked, int N> __device__ __forceinline__ void change(float (&)[N], int) const {}
};

}  // namespace tilekiln::cuda::fmha_fwd
