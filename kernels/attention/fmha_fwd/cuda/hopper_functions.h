// SPDX-License-Identifier: MIT
// Functions from Python in the forward on Hopper: the key tiles that a mask shows, in runs, and the change of scores.
//
// A kernel of its own, before, asks the mask's bounds over all key tiles of all tiles, a thread each: two bits. Whoever
// deals a tile out makes runs of these, and loaders and consumers go down the runs, so what is hidden is neither loaded
// nor multiplied; consumers look at pairs in tiles that are shown in part.
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

  // Bits of the 32 key tiles of `word`, by a warp, a tile a lane: those that are shown, and those of them in part.
  template <int kQueryRows, int kKeys, class F = Functions, class A = Argument>
  static __device__ __forceinline__ uint64_t bits_of(const A& a, const Tile& tile, int word, int lane) {
    const int n = 32 * word + lane, keys = min(kKeys, tile.seqlen_k - n * kKeys);
    KeyRange whole = {0, tile.seqlen_k / kKeys, 0};
    if (features_of(a) & fmha_fwd::kMask)
      whole = KeyRange::whole<kKeys>(mask_of(a, tile.shift), tile.row, kQueryRows, tile.seqlen_k, 0);
    bool holds = keys > 0 && ((n < tile.range.last && n >= tile.range.first) || n < tile.range.sinks);
    bool fails = n < whole.first || n >= whole.last;
    if constexpr (F::kMask) {
      if (holds) {
        const int rows = min(kQueryRows, tile.seqlen_q - tile.row);
        const auto truth = F::bounds(a.tensor, {tile.row, rows, n * kKeys, keys, tile.h, tile.b});
        holds = truth.may_hold, fails |= truth.may_fail;
      }
    }
    const uint32_t shown = __ballot_sync(~0u, holds), part = __ballot_sync(~0u, holds && fails);
    return uint64_t(part) << 32 | shown;
  }

  // Fills it, a warp together, for a tile by its bits: a lane knows its run by the runs that begin at it and above.
  __device__ __forceinline__ void fill(const unsigned long long* bits, int words, int lane) {
    int begun = 0, shown = 0, lowest = 0;
    uint32_t above = 0;  // bit 0: the key tile above is shown, bit 1: in part
    uint64_t mine = 0;   // of 32 words
    auto* const half = reinterpret_cast<uint16_t*>(word);
    for (int at = words - 1; at >= 0; --at) {
      if (at == words - 1 || at % 32 == 31) mine = (at & ~31) + lane < words ? bits[(at & ~31) + lane] : 0;
      const uint64_t both = __shfl_sync(~0u, mine, at % 32);
      const uint32_t some = uint32_t(both), part = uint32_t(both >> 32), begin_at = 32 * at;
      const uint32_t same_above = ((some >> 1 | above << 31) & ~((part >> 1 | above >> 1 << 31) ^ part)) & some;
      const uint32_t begins = some & ~same_above;
      const int number = begun + __popc(begins >> lane) - 1, place = min(number, kRuns - 1);
      if (begins >> lane & 1 && number == place) half[2 * place + 1] = uint16_t(begin_at + lane);
      __syncwarp();
      // The lowest of a run here; what comes below may go on with it.
      if (some >> lane & 1 && (lane == 0 || !(same_above >> (lane - 1) & 1)))
        half[2 * place] = place == kRuns - 1 ? 1 : uint16_t((begin_at + lane) << 1 | (part >> lane & 1));
      __syncwarp();
      begun += __popc(begins), shown += __popc(some);
      if (some) lowest = begin_at + __clz(int(__brev(some)));
      above = (some & 1) | (part & 1) << 1;
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
