// SPDX-License-Identifier: MIT
// The walk of a warpgroup of the Hopper backward over key tiles and query tiles.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/movers.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/scores.h"

namespace tilekiln::cuda::fmha_bwd {

template <int N> TILEKILN_DEVICE void clear(uint32_t (&words)[N][4]) {
#pragma unroll
  for (int i = 0; i < 4 * N; ++i) words[i / 4][i % 4] = 0;
}

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
      walk(p, [&](auto extras) {
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
