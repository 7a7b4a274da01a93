// SPDX-License-Identifier: MIT
// The warpgroups of the Hopper backward that make dK and dV, head dims to 128: each has 64 of the tile's 128 keys.
//
// S^T and dP^T have keys for rows, so P^T and dS^T stay in registers as the first operands of dV and dK; dS^T goes through shared
// memory too, to the warpgroup of dQ (queries.h). dK of step m - 1 runs under the softmax of step m, dV under dS.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/walk.h"
#include "wgmma.h"

namespace tilekiln::cuda::fmha_bwd {

TILEKILN_DEVICE void compute_dk_dv(const Row& p, Shared& s, int w, int thread) {
  const int lane = thread & 31, warp = thread >> 5, group = p.nhead_q / p.shares;
  const int own_keys = w * 64;  // the first of this warpgroup's in the tile
  float dk[kHdim / 2], dv[kHdim / 2], score[kQueryRows / 2];
  uint32_t weight[kQueryRows / 16][4], ds[kQueryRows / 16][4];  // P^T and dS^T
  uint32_t k = shared_address(s.k), v = shared_address(s.v);
  uint32_t at = 0, turns = 0;

  const auto issue_scores = [&](uint32_t keys, uint32_t rows) {  // score (64 keys, query rows) = keys rows^T
    product_fence();
    multiply_shared<kQueryRows, 0, 0, 4 * kPanels, 2, kKeys * 8, 2, kQueryRows * 8>(
        score, tile_descriptor(keys + own_keys * 128, 16, 1024), tile_descriptor(rows, 16, 1024), 0);
    product_commit();
  };
  const auto issue_sums = [&](float (&sums)[kHdim / 2], const uint32_t (&word)[kQueryRows / 16][4], uint32_t rows) {
    product_fence();  // sums += words rows
    add_registers<kHdim, 1, kQueryRows / 16, 128>(sums, word, tile_descriptor(rows, kQueryRows * 128, 1024));
    product_commit();
  };
  const auto issue_dk = [&](uint32_t step) { issue_sums(dk, ds, shared_address(s.q[step % kStages])); };
  const auto begin = [&] {
    at = uniform(at), turns = uniform(turns);
#pragma unroll
    for (int i = 0; i < kHdim / 2; ++i) dk[i] = dv[i] = 0.f;
    clear(ds);
    pin(dk);
    pin(dv);
    wait(s.kv_full, turns & 1);
    ++turns;
  };
  const auto step = [&](auto first, auto extras, const Turn& t, int g, int m, bool fresh) {
    at = uniform(at), k = uniform(k), v = uniform(v);  // else every descriptor is worked out ahead and takes registers
    const int slot = at % kStages, last_slot = (at + kStages - 1) % kStages, ds_slot = at % kDsStages;
    const uint32_t phase = at / kStages & 1;
    wait(s.q_full[slot], phase);
    issue_scores(k, shared_address(s.q[slot]));
    if constexpr (!first.value) issue_dk(fresh ? at : at - 1);
    Scores<extras.value, kQueryRows, 64> scores(p, t, group, g, m, t.tile * kKeys + own_keys, warp * 16, lane, weight);
    scores.draw();
    if constexpr (first.value)
      product_wait<0>();
    else
      product_wait<1>();
    pin(score);
    scores.weigh(score, s.lse[slot], [&] {
      if constexpr (!first.value) {
        pin(score);
        product_wait<0>();
        pin(dk);
        arrive_unless<extras.value != kPlain>(fresh, s.q_empty[last_slot], lane);
      }
    });
    wait(s.dout_full[slot], phase);
    const uint32_t dout = shared_address(s.dout[slot]);
    if constexpr (scores.kDrops) {
#pragma unroll
      for (int i = 0; i < kQueryRows / 16; ++i) pin(weight[i]);
    }
    issue_scores(v, dout);  // dP^T
    issue_sums(dv, weight, dout);
    const int quarter = lane >> 3, to_row = own_keys + warp * 16 + (quarter & 1) * 8 + (lane & 7);
    const uint32_t to = shared_address(s.ds[ds_slot]) + to_row * 128;
    uint16_t* const dbias = scores.dbias();
    wait(s.ds_empty[ds_slot], (at / kDsStages & 1) ^ 1);
    product_wait<0>();
    pin(score);
    pin(dv);
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {
      const float2 delta[2] = {scores.delta_of(s.delta[slot], 2 * i), scores.delta_of(s.delta[slot], 2 * i + 1)};
      scores.differentiate(i, score, delta, dbias, ds[i]);
      store_matrices(to + i / 4 * kKeys * 128 + ((i % 4 * 2 + (quarter >> 1)) ^ (to_row & 7)) * 16, ds[i]);
    }
    async_shared_fence();
    warp_arrive(s.ds_full[ds_slot], lane);
    warp_arrive(s.dout_empty[slot], lane);
    ++at;
  };
  const auto end = [&](const Turn& t) {
    if (t.length > 0) {
      issue_dk(at - 1);
      product_wait<0>();
      pin(dk);
      warp_arrive(s.q_empty[(at - 1) % kStages], lane);
    }
    warp_arrive(s.kv_empty, lane);
    store_keys(p, t, dv_of(p), own_keys + warp * 16, 0, lane, dv);
    store_keys(p, t, dk_of(p), own_keys + warp * 16, 0, lane, dk);
  };
  walk_tiles(p, begin, step, end);
}

}  // namespace tilekiln::cuda::fmha_bwd
