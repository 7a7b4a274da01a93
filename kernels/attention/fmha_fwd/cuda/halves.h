// SPDX-License-Identifier: MIT
// Scores to weights of elements of 16 bits: soft cap, alibi, bias, mask, running softmax, dropout.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/shared.h"

namespace tilekiln::cuda::fmha_fwd {

constexpr bool kSameSource = kKeys % 32 == 0;  // what bytes are drawn from is the same for all tiles of keys

// Weights of a warpgroup's rows of a tile. Key tile n: draw, while its scores are made; update, scores to weights;
// to_weights, rounded. What a copy of a loop is made for comes as kExtras.
struct SoftmaxOfHalves {
  struct Launch {
    float scale_log2;
    explicit __device__ __forceinline__ Launch(const Params& p) : scale_log2(p.score_scale_log2) {}
  };
  using Drawn = DroppedHalf<kKeys, kDroppedRoom>;
  static constexpr float of_values = 1;
  const Params& p;
  const Launch& launch;
  OwnOfHalves& own;
  const Tile& tile;
  const Warpgroup& w;
  int warp_row;  // the warp's first, from the tile's first row
  SoftmaxState state;
  const std::conditional_t<kOwn, OwnScores<Functions, Argument>, NoScores> scores;
  int extras;
  float slope = 0, distance = 0;  // of this loop
  Drawn::Source source;           // likewise

  __device__ __forceinline__ SoftmaxOfHalves(const Params& p, const Launch& launch, OwnOfHalves& own, const Tile& tile,
                                             const Warpgroup& w)
      : p(p),
        launch(launch),
        own(own),
        tile(tile),
        w(w),
        warp_row(64 * w.index + row_of_warp(p, w.thread >> 5)),
        scores(p, tile, warp_row) {}

  // walk(copies): of the loops that the launch's features ask for.
  template <class Walk> __device__ __forceinline__ void by_copies(Walk&& walk) {
    if constexpr (kOwn)
      walk(OneCopy<kFunctions>{});
    else
      by_features(walk);
  }
  template <class Walk> __device__ __forceinline__ void by_features(Walk&& walk) {
    extras = features_of(p) & kExtraFeatures;
    bool general = extras & kBias || extras & (extras - 1);  // or two of them
    if (kCappedTop && extras == kSoftcap) {
      general = p.capped_top == 0;
      if (!general) state.maximum[0] = state.maximum[1] = p.capped_top / p.score_scale_log2;
    }
    walk(CopyByFeature{extras, general});
  }
  // A loop without a mask begins at key tile n.
  template <int kExtras> __device__ __forceinline__ void begin_loop(int n) {
    if constexpr (kExtras == kSloped) slope = slope_of(p, tile), distance = float(distance_of(tile, warp_row));
    if constexpr (kExtras == kDropped && kSameSource) source = source_of(n);
  }
  template <int kExtras> __device__ __forceinline__ Drawn draw(int n) {
    Drawn drawn;
    if constexpr (kHasPieces && kExtras == kGeneral)
      if (features_of(p) & kBiasPieces) bias().ask(p, tile, field(tile.row) + warp_row, n * kKeys);
    if constexpr (kExtras == kDropped || kExtras == kGeneral) {
      if (kExtras == kGeneral && !(features_of(p) & kDropout))
        drawn.none();
      else
        drawn.draw(kExtras == kDropped && kSameSource ? source : source_of(n), n * kKeys);
    }
    return drawn;
  }
  template <bool kMasked, int kExtras, int N> __device__ __forceinline__ void update(float (&s)[N], int n) {
    if constexpr (kExtras == kFunctions) scores.template change<kMasked>(s, n * kKeys);
    if constexpr (kExtras == kCapped) cap(s, p);
    if constexpr (kCappedTop && kExtras == kCapped) return state.update_capped(s, launch.scale_log2, p.capped_top);
    if constexpr (kExtras == kSloped) slant(s, slope, distance - float(n * kKeys));
    if constexpr (kExtras == kGeneral) change(s, p, tile, warp_row, n * kKeys, rows_apart(p));
    if constexpr (kHasPieces && kExtras == kGeneral)
      if (features_of(p) & kBiasPieces) bias().add(s, p.bias_scale);
    if constexpr (kMasked) mask(s, p, tile, warp_row, n * kKeys, rows_apart(p, kExtras == kGeneral));
    state.update(s, launch.scale_log2, kCappedTop && kExtras == kGeneral && p.capped_top > 0);
  }
  template <int kExtras, int N, int kSteps>
  __device__ __forceinline__ void to_weights(const float (&s)[N], uint32_t (&word)[kSteps][4], Drawn& drawn) const {
    constexpr bool kDrops = kExtras == kDropped || kExtras == kGeneral;
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      if (kDrops && i % 2 == 0 && (kExtras == kDropped || features_of(p) & kDropout)) drawn.fetch(i / 2);
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        word[i][u] = pack(s[8 * i + 2 * u], s[8 * i + 2 * u + 1]);
        if constexpr (kDrops) word[i][u] = drawn.apply(word[i][u], 2 * i + u / 2, u % 2);
      }
    }
  }

  __device__ __forceinline__ void reduce() {
    state.reduce();
    for (float& sum : state.sum)
      if (kCappedTop && p.capped_top > 0 && sum > 0x1p120f) sum = __int_as_float(0x7fffffff);
  }

 private:
  __device__ __forceinline__ BiasPieces bias() const { return {shared_address(own.extra[w.index][w.thread >> 5])}; }
  __device__ __forceinline__ Drawn::Source source_of(int n) const {
    const int warp = w.thread >> 5;
    const Dropout d{p.dropout_seed, p.dropout_offset, p.dropout_over};
    return Drawn::Source(d, field(tile.b) * p.nhead_q + field(tile.h), field(tile.row) + 64 * w.index + warp / 2 * 32,
                         warp & 1, n * kKeys, shared_address(own.extra[w.index][warp]));
  }
};

}  // namespace tilekiln::cuda::fmha_fwd
