// SPDX-License-Identifier: MIT
// The warpgroup of the Hopper backward that makes dQ = dS K of a key tile, a block of 64 x 64 at a time, and adds it to
// its sum in L2 from registers, when the writer warp, which waits for the turn, has said so.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/movers.h"
#include "kernels/backends/cuda/tile/fragment.h"

namespace tilekiln::cuda::fmha_bwd {

TILEKILN_DEVICE void compute_dq(const Params& p, Shared& s, const Warpgroup& w) {
  const Order<kQueryRows, kKeys, true> order(p);
  const int lane = w.lane(), blocks = blocks_of(p);
  Fragment<64> dq;
  auto k = s.of_keys[0].k.turned().from(0);
  Consumer<DqPlaces> places(s.places, lane);
  uint32_t at = 0, turns = 0;
  Turn t{};

  const auto issue_dq = [&](const DsTile& ds, int block) {
    wgmma_fence();
    mma(dq, ds.from(kHdim == 64 ? 64 * block : 0), k.behind(kHdim == 64 ? 0 : 64 * block), false);
    wgmma_commit();
  };
  for (int x = 0; x < order.turns(); ++x) {
    if (!uniform(order.turn(x, t))) continue;
    turns = uniform(turns);
    const int length = uniform(t.length);
    const Reader<KeyPipe> keys(s.keys(), lane, turns);
    k = keys.wait().k.turned().from(0);
    ++turns;
    for (int c = 0; c < length; ++c, ++at) {
      at = uniform(at), k = k.kept();
      const Reader<DsPipe> from(s.ds(), lane, at);
      const DsTile& ds = from.wait();
      issue_dq(ds, 0);
      places.at.keep();
      const DqPlace& place = places.wait();
      float4* const to = reinterpret_cast<float4*>(*const_cast<float* const volatile*>(&place.to)) + w.thread;
      const bool alone = field(place.first);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        if (block > 0) issue_dq(ds, block);
        wgmma_wait<0>(dq);
        if (block == kBlocks - 1) from.release();
        if (block < blocks) {
#pragma unroll
          for (int i = 0; i < 8; ++i)
            store_or_add(alone, to + block * 1024 + i * 128,
                         make_float4(dq.v[4 * i], dq.v[4 * i + 1], dq.v[4 * i + 2], dq.v[4 * i + 3]));
        }
        pin(dq.v);
      }
      places.release(), places.advance();  // the writer's release, which comes after it, holds for these adds too
    }
    keys.release();
  }
}

}  // namespace tilekiln::cuda::fmha_bwd
