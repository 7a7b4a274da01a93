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

// One arrival for the warp; not where kAsked and `fresh`, by a predicate.
template <bool kAsked> TILEKILN_DEVICE void arrive_unless(bool fresh, uint64_t& b, int lane) {
  if constexpr (kAsked)
    warp_arrive_if(!fresh, b, lane);
  else
    warp_arrive(b, lane);
}

// Calls begin() at each of this CTA's key tiles, step(first, extras, turn, g, m, fresh) at each of its query tiles, and end(turn). `first`
// is a template argument: a product in a branch makes ptxas wait for all of them. `fresh`: no step came before in this key tile; without
// `first` it issues the product that is due for the step before with words of zero (not in wide.h, whose plain loops lose by it).
template <class Begin, class Step, class End>
TILEKILN_DEVICE void walk_tiles(const Row& p, const Begin& begin, const Step& step, const End& end) {
  const Order<kQueryRows, kKeys, true> order(p);
  Turn t{};
  for (int x = 0; x < order.turns(); ++x) {
    if (!uniform(order.turn(x, t))) continue;
    begin();
    if (t.length > 0) {
      int g, m;
      order.first_step(t, g, m);
      g = uniform(g), m = uniform(m);
      if constexpr (kWide) {
        // The first step has two copies alone: a kernel's size is time at its first use.
        if (p.features & (kSoftcap | kBias | kDropout))
          step(Constant<1>{}, Constant<kGeneral>{}, t, g, m, true);
        else
          step(Constant<1>{}, Constant<kPlain>{}, t, g, m, true);
      }
      walk(p, [&](auto extras) {
        constexpr int kFirst = kWide || extras.value == kPlain ? 1 : 0;
        if constexpr (!kWide && kFirst == 1) step(Constant<1>{}, extras, t, g, m, true);
        for (int c = kFirst; c < t.length; ++c) {
          if (c > 0) order.next_step(t, g, m);
          step(Constant<0>{}, extras, t, g, m, kFirst == 0 && c == 0);
        }
      });
    }
    end(t);
  }
}

}  // namespace tilekiln::cuda::fmha_bwd
