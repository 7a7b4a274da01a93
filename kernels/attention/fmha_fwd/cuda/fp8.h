// SPDX-License-Identifier: MIT
// The forward's further steps when q, k and v are e4m3.
//
// wgmma of 8 bits wants both operands along the keys in O += P v, and v lies along the head dim. So three warps of the
// loader's warpgroup turn each tile of v over in shared memory, in the order in which the lanes hold P:
//
//   keys: position 4 t + i of 16 holds key 2 t + i for i < 2, 8 + 2 t + i - 2 else: what lane t of a quad has
//   hdim: row 16 m + r of the turned tile holds column 16 m + 2 r for r < 8, 16 m + 2 (r - 8) + 1 else: so lane t of a
//         quad has the four neighbours 16 m + 4 t + 0..3 of O, and no lane's matrices meet in a bank
//
// P is rounded to e4m3 as 2^8 P, whose largest value is 256 of 448. What undoes the quantisation of q and k is a factor
// of the scores; of v, a factor of O: with scales of blocks O is kept in units of the scale of the last block, and
// rescaled as the maximum moves.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/shared.h"

namespace tilekiln::cuda::fmha_fwd {

constexpr int kScaleBlock = 128;  // queries or keys of a block

// A tile of v. The warps `warp` of `kWarps` share it.
template <int kWarps, class From, class To>
TILEKILN_DEVICE void turn_over(const From& from, const To& to, int warp) {
  const int lane = fresh_lane();  // what comes of it would be kept over tiles, in local memory
  const int row = (lane >> 3 & 1) * 8 + (lane & 7);
  for (int columns = warp; columns < To::kLines / 16; columns += kWarps) {  // 16 of them, of all keys
    uint32_t w[4][4];
#pragma unroll
    for (int keys = 0; keys < 4; ++keys)
      load_matrices_transposed(w[keys], from.at(columns >> 3, keys * 32 + lane, columns & 7));
#pragma unroll
    for (int keys = 0; keys < 4; ++keys) {
      const uint32_t turned[4] = {
          __byte_perm(w[keys][0], w[keys][1], 0x6420), __byte_perm(w[keys][0], w[keys][1], 0x7531),
          __byte_perm(w[keys][2], w[keys][3], 0x6420), __byte_perm(w[keys][2], w[keys][3], 0x7531)};
      store_matrices(to.at(0, columns * 16 + row, 2 * keys + (lane >> 4)), turned);
    }
  }
}

// The factors of a launch.
struct Scaling {
  float scores = 1, values = 1;  // of q k^T and of v, where they are the same for all blocks
  bool late;  // whether the scores' factor waits for the exponential: it is one for all keys, and keeps their order
  float scale_log2;  // what the exponential multiplies with

  explicit __device__ __forceinline__ Scaling(const Params& p) {
    if (p.q_descale && !(p.features & kBlockScales)) scores = *p.q_descale * *p.k_descale, values = *p.v_descale;
    late = !(p.features & (kBlockScales | kSoftcap)) && scores > 0;
    scale_log2 = late ? p.score_scale_log2 * scores : 1.f;
  }
};

// The factors of a block of queries and one of keys.
struct BlockScales {
  const float *keys, *values;  // of this head, from the first block of the sequence on
  int most;                    // the last block there is
  float queries;

  // `row`: the first of 64 queries.
  TILEKILN_DEVICE BlockScales of(const Params& p, const Scaling& all, int b, int h, int row) {
    if (!(p.features & kBlockScales)) return {nullptr, nullptr, 0, all.scores};
    const int start_q = p.scale_start_q ? clamp(p.scale_start_q[b], 0, p.q_scales - 1) : 0;
    const int start_k = p.scale_start_k ? clamp(p.scale_start_k[b], 0, max(p.k_scales - 1, 0)) : 0;
    const int head_k = h / (p.nhead_q / p.nhead_k), at = min(start_q + row / kScaleBlock, p.q_scales - 1);
    return {p.k_descale + b * p.k_scale_batch + head_k * p.k_scale_head + start_k,
            p.v_descale + b * p.v_scale_batch + head_k * p.v_scale_head + start_k, p.k_scales - 1 - start_k,
            p.q_descale[b * p.q_scale_batch + h * p.q_scale_head + at]};
  }
};

// Scores to weights of a warpgroup's rows of a tile; the interface of SoftmaxOfHalves.
struct SoftmaxOfBytes {
  using Launch = Scaling;
  struct Drawn {};
  const Params& p;
  const Launch& launch;
  const Tile& tile;
  int own_row, warp_row;  // the first of the warpgroup and of the warp, from the tile's first row
  SoftmaxState state;
  float of_values = 1;  // the factor of o: what undoes the quantisation of v
  BlockScales blocks = {};
  float of_scores, of_tile;  // of the current key tile
  uint32_t kept = ~0u;       // no bit where the factor of v is 0

  __device__ __forceinline__ SoftmaxOfBytes(const Params& p, const Launch& launch, OwnOfBytes&, const Tile& tile,
                                            const Warpgroup& w)
      : p(p), launch(launch), tile(tile), own_row(64 * w.index), warp_row(own_row + row_of_warp(p, w.thread >> 5)) {}

  template <class Walk> __device__ __forceinline__ void by_copies(Walk&& walk) {
    if (!launch.late) {
      blocks = BlockScales::of(p, launch, field(tile.b), field(tile.h), field(tile.row) + own_row);
      if (p.features & kSoftcap)
        walk(OneCopy<kGeneral>{});
      else
        walk(OneCopy<kScaled>{});
    } else {
      of_values = launch.values;
      walk(OneCopy<kPlain>{});
    }
  }
  template <int kExtras> __device__ __forceinline__ void begin_loop(int) {}
  template <int kExtras> __device__ __forceinline__ Drawn draw(int n) {
    if constexpr (kExtras != kPlain) {
      of_scores = blocks.queries * (blocks.keys ? blocks.keys[min(n, blocks.most)] : 1.f);
      of_tile = blocks.values ? blocks.values[min(n, blocks.most)] : launch.values;
    }
    return {};
  }
  template <bool kMasked, int kExtras, int N> __device__ __forceinline__ void update(float (&s)[N], int n) {
    if constexpr (kExtras == kScaled) scale(s, of_scores * p.score_scale_log2);
    if constexpr (kExtras == kGeneral) scale(s, of_scores), cap(s, p), scale(s, p.score_scale_log2);
    if constexpr (kMasked) mask(s, p, tile, warp_row, n * kKeys);
    state.update<kMasked ? 0 : kWeighedByFma>(s, launch.scale_log2);
    if constexpr (kExtras != kPlain) {
      kept = of_tile == 0.f ? 0 : ~0u;
      const float unit = of_tile == 0.f ? of_values : of_tile;
      const float change = fminf(fmaxf(of_values / unit, -kLargest), kLargest);
      state.correction[0] *= change, state.correction[1] *= change;
      of_values = unit;
    }
  }
  __device__ __forceinline__ void reduce() { state.reduce(); }
  template <int kExtras, int N, int kSteps>
  __device__ __forceinline__ void to_weights(const float (&s)[N], uint32_t (&word)[kSteps][4], Drawn&) const {
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const int at = 16 * i + u / 2 * 8 + u % 2 * 2;
        word[i][u] = pack_e4m3(s[at], s[at + 1], s[at + 4], s[at + 5]);
        if constexpr (kExtras != kPlain) word[i][u] &= kept;
      }
    }
  }
};

}  // namespace tilekiln::cuda::fmha_fwd
