// SPDX-License-Identifier: MIT
// The warpgroup of the Hopper backward that makes dQ = dS K of a key tile, a block of 64 x 64 at a time, and adds it to its sum in L2 from
// registers, when the writer warp, which waits for the turn, has said so.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/movers.h"
#include "wgmma.h"

namespace tilekiln::cuda::fmha_bwd {

TILEKILN_DEVICE void compute_dq(const Row& p, Shared& s, int thread) {
  const Order<kQueryRows, kKeys, true> order(p);
  const int lane = thread & 31, blocks = blocks_of(p);
  float dq[32];
  uint32_t k = shared_address(s.k);
  uint32_t at = 0, turns = 0, writer = 0, phase = 0;
  Turn t{};

  const auto issue_dq = [&](uint32_t ds, int block) {
    const uint32_t block_rows = kHdim == 64 ? block * kKeys * 128 : 0;
    const uint32_t block_columns = kHdim == 64 ? 0 : block * kKeys * 128;
    product_fence();
    multiply_shared<64, 1, 1, kKeys / 16, 128, 512, 128, 512>(dq, tile_descriptor(ds + block_rows, 1024, 1024),
                                                              tile_descriptor(k + block_columns, 1024, 1024), 0);
    product_commit();
  };
  for (int x = 0; x < order.turns(); ++x) {
    if (!uniform(order.turn(x, t))) continue;
    turns = uniform(turns);
    const int length = uniform(t.length);
    wait(s.kv_full, turns & 1);
    ++turns;
    for (int c = 0; c < length; ++c, ++at) {
      at = uniform(at), k = uniform(k);
      const int slot = at % kDsStages;
      const uint32_t ds = shared_address(s.ds[slot]);
      wait(s.ds_full[slot], at / kDsStages & 1);
      issue_dq(ds, 0);
      writer = uniform(writer), phase = uniform(phase);
      wait(s.dq_empty[writer], phase);
      float4* const to = reinterpret_cast<float4*>(*const_cast<float* volatile*>(&s.dq_to[writer])) + thread;
      const bool alone = field(s.dq_first[writer]);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        if (block > 0) issue_dq(ds, block);
        product_wait<0>();
        pin(dq);
        if (block == kBlocks - 1) warp_arrive(s.ds_empty[slot], lane);
        if (block < blocks) {
#pragma unroll
          for (int i = 0; i < 8; ++i)
            store_or_add(alone, to + block * 1024 + i * 128,
                         make_float4(dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]));
        }
        pin(dq);
      }
      warp_arrive(s.dq_full[writer], lane);  // the writer's release, which comes after it, holds for these adds too
      if (++writer == kWriters) writer = 0, phase ^= 1;
    }
    warp_arrive(s.kv_empty, lane);
  }
}

}  // namespace tilekiln::cuda::fmha_bwd
