// SPDX-License-Identifier: MIT
// Functions from Python in the forward on Hopper: the key tiles that a mask shows, in runs, and the change of scores.
//
// The warp that deals tiles out asks the mask's bounds over 32 key tiles at once. Loaders and consumers go down the
// runs, so what is hidden is neither loaded nor multiplied; consumers look at pairs in tiles that are shown in part.
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

// Key tiles [last, until], downwards; part: of which some pairs may be hidden.
struct KeyRun {
  int last, until;
  bool part;

  static __device__ __forceinline__ KeyRun of(uint32_t word) {
    return {int(word >> 16), int(word >> 1 & kMostKeyTiles), bool(word & 1)};
  }
};

// Runs of key tiles that a mask and the window show to a CTA's rows, from the last key tile down. Where there is no
// room for more the last run goes on to key tile 0.
struct KeyMap {
  static constexpr int kRuns = 128;
  uint32_t word[kRuns];
  int runs, tiles, final;  // final: the last tile of all; 0 without any

  __device__ __forceinline__ KeyRun run(int at) const { return KeyRun::of(uniform(int(word[at]))); }

  // Fills it, a warp together, for a tile: a lane asks for the bounds of a key tile, and knows its run by the runs that
  // begin at it and above.
  template <int kQueryRows, int kKeys, class F = Functions, class A = Argument>
  __device__ __forceinline__ void fill(const Params& p, const Tile& tile, int lane) {
    const A& a = static_cast<const A&>(p);
    const int all = KeyRange::tiles<kKeys>(tile.seqlen_k), rows = min(kQueryRows, tile.seqlen_q - tile.row);
    KeyRange whole = {0, tile.seqlen_k / kKeys, 0};
    if (features_of(a) & fmha_fwd::kMask)
      whole = KeyRange::whole<kKeys>(mask_of(a, tile.shift), tile.row, kQueryRows, tile.seqlen_k, 0);
    int begun = 0, shown = 0, lowest = 0;
    uint32_t above = 0;  // bit 0: the key tile above is shown, bit 1: in part
    auto* const half = reinterpret_cast<uint16_t*>(word);
    for (int from = (all - 1) / 32 * 32; from >= 0; from -= 32) {
      const int n = from + lane;
      bool holds = n < all && ((n < tile.range.last && n >= tile.range.first) || n < tile.range.sinks);
      bool fails = n < whole.first || n >= whole.last;
      if constexpr (F::kMask) {
        if (holds) {
          const auto truth =
              F::bounds(a.tensor, {tile.row, rows, n * kKeys, min(kKeys, tile.seqlen_k - n * kKeys), tile.h, tile.b});
          holds = truth.may_hold, fails |= truth.may_fail;
        }
      }
      const uint32_t some = __ballot_sync(~0u, holds), in_part = __ballot_sync(~0u, holds && fails);
      const uint32_t same_above = ((some >> 1 | above << 31) & ~((in_part >> 1 | above >> 1 << 31) ^ in_part)) & some;
      const uint32_t begins = some & ~same_above;
      const int at = begun + __popc(begins >> lane) - 1, slot = min(at, kRuns - 1);
      if (begins >> lane & 1 && at == slot) half[2 * slot + 1] = uint16_t(n);
      __syncwarp();
      // The lowest of a run here; what comes below may go on with it.
      if (holds && (lane == 0 || !(same_above >> (lane - 1) & 1)))
        half[2 * slot] = slot == kRuns - 1 ? 1 : uint16_t(n << 1 | fails);
      __syncwarp();
      begun += __popc(begins), shown += __popc(some);
      if (some) lowest = from + __clz(int(__brev(some)));
      above = (some & 1) | (in_part & 1) << 1;
    }
    if (lane == 0) {
      runs = min(begun, kRuns), final = begun < kRuns ? lowest : 0;
      tiles = begun < kRuns ? shown : kRuns;  // at least so many
    }
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
