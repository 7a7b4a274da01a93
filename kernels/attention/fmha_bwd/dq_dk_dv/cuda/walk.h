// The walk of a warpgroup of the Hopper backward over key tiles and query tiles.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/movers.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/scores.h"

namespace tilekiln::cuda::fmha_bwd {

// Calls begin() at each of this CTA's key tiles, step(first, extras, turn, g, m) at each of its query tiles, and end(turn). `first` is a
// template argument: a product in a branch makes ptxas wait for all of them.
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
      // The first step has two copies alone: a kernel's size is time at its first use.
      if (p.features & (kSoftcap | kBias | kDropout))
        step(Constant<1>{}, Constant<kGeneral>{}, t, g, m);
      else
        step(Constant<1>{}, Constant<kPlain>{}, t, g, m);
      walk(p, [&](auto extras) {
        for (int c = 1; c < t.length; ++c) {
          order.next_step(t, g, m);
          step(Constant<0>{}, extras, t, g, m);
        }
      });
    }
    end(t);
  }
}

}  // namespace tilekiln::cuda::fmha_bwd
