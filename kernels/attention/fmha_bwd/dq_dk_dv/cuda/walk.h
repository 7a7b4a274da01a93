// SPDX-License-Identifier: MIT
// The walk of a warpgroup of the Hopper backward over key tiles and query tiles.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/movers.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/scores.h"
#include "kernels/backends/cuda/tile/fragment.h"

namespace tilekiln::cuda::fmha_bwd {

template <int N> TILEKILN_DEVICE void clear(uint32_t (&words)[N][4]) {
#pragma unroll
  for (int i = 0; i < 4 * N; ++i) words[i / 4][i % 4] = 0;
}

using Words = OperandFragment<BuildElement, kQueryRows>;  // P^T or dS^T

// A warpgroup that multiplies: its CTA, and its place in the walk.
struct Multiplier {
  const Params& p;
  Shared& s;
  const int lane, warp, group;
  Fragment<kQueryRows> score;
  uint32_t at = 0, turns = 0;  // steps and key tiles so far

  __device__ __forceinline__ Multiplier(const Params& p, Shared& s, const Warpgroup& w)
      : p(p), s(s), lane(w.lane()), warp(w.thread >> 5), group(p.nhead_q / p.shares) {}

  __device__ __forceinline__ Reader<QueryPipe> queries(uint32_t step) { return {s.queries(), lane, step}; }
  __device__ __forceinline__ Reader<GradientPipe> gradients(uint32_t step) { return {s.gradients(), lane, step}; }
  __device__ __forceinline__ Reader<KeyPipe> tile_of_keys() { return {s.keys(), lane, turns}; }

  template <class Keys, class Rows>
  __device__ __forceinline__ void multiply(const Operand<Keys>& keys, const Rows& rows) {
    wgmma_fence();  // score (64 keys, query rows) = keys rows^T
    mma(score, keys, rows.from(0), false);
    wgmma_commit();
  }
  // dS^T of the warp's keys, from `key` of the tile on, and of the pipeline's query tile `number`: to registers and
  // `tile`.
  template <class Scored>
  __device__ __forceinline__ void differentiate(const Scored& scores, int number, const DsTile& tile, int key,
                                                uint16_t* dbias, Words& ds) {
    const uint32_t to_lane = tile.place_of_block(key, lane);
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {
      const float* const rows = s.delta[number];
      const float2 delta[2] = {scores.delta_of(rows, 2 * i), scores.delta_of(rows, 2 * i + 1)};
      scores.differentiate(i, score.v, delta, dbias, ds.word[i]);
      tile.store_block(to_lane, i, ds.word[i]);
    }
  }
};

// Calls begin() at each of this CTA's key tiles, step<kFirst, kExtras>(turn, g, m, fresh) at each of its query tiles,
// and end(turn). kFirst is a template argument: a product in a branch makes ptxas wait for all of them. `fresh`: no
// step came before in this key tile; without kFirst it issues the product that is due for the step before with words of
// zero (not in wide.h, whose plain loops lose by it).
template <class Tiles> TILEKILN_DEVICE void walk_tiles(const Params& p, Tiles& tiles) {
  const Order<kQueryRows, kKeys, true> order(p);
  Turn t{};
  for (int x = 0; x < order.turns(); ++x) {
    if (!uniform(order.turn(x, t))) continue;
    tiles.begin();
    if (t.length > 0) {
      int g, m;
      order.first_step(t, g, m);
      g = uniform(g), m = uniform(m);
      if constexpr (kWide) {
        // The first step has two copies alone: a kernel's size is time at its first use.
        if (p.features & (kSoftcap | kBias | kDropout))
          tiles.template step<true, kGeneral>(t, g, m, true);
        else
          tiles.template step<true, kPlain>(t, g, m, true);
      }
      walk<!kWide>(p, [&](auto extras) {
        constexpr int kFirst = kWide || extras.value == kPlain ? 1 : 0;
        if constexpr (!kWide && kFirst == 1) tiles.template step<true, extras.value>(t, g, m, true);
        for (int c = kFirst; c < t.length; ++c) {
          if (c > 0) order.next_step(t, g, m);
          tiles.template step<false, extras.value>(t, g, m, kFirst == 0 && c == 0);
        }
      });
    }
    tiles.end(t);
  }
}

// The role of a warpgroup that multiplies: Tiles(p, s, Warpgroup) walks.
template <class Tiles> TILEKILN_DEVICE auto multiplies(const Params& p, Shared& s) {
  return [&](const Warpgroup& w) {
    Tiles tiles(p, s, w);
    walk_tiles(p, tiles);
  };
}

}  // namespace tilekiln::cuda::fmha_bwd
