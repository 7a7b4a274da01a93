// SPDX-License-Identifier: MIT
// The warpgroups of the Hopper backward that compute, head dims above 128: a tile of 64 keys, and a product's sums each.
//
//     dv:  S^T = K Q^T, P, dV += P^T dO;    dk:  dP^T = V dO^T, dS, dK += dS^T Q;    dq:  dQ = dS K
//
// The sums of dV and of dK (64 x 256 in fp32) fill half of a warpgroup's registers each, so one warpgroup has the one and one the
// other. Both have the same 64 keys for rows of their scores: P^T passes from thread to thread in shared memory, and stays first operand
// of dV where it was made; dS^T stays first operand of dK and goes through shared memory to the third warpgroup. They follow each
// other at a distance of two steps at most. dq: queries.h.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/walk.h"
#include "wgmma.h"

namespace tilekiln::cuda::fmha_bwd {

// score (64 keys, query rows) = keys rows^T.
TILEKILN_DEVICE void issue_scores(float (&score)[kQueryRows / 2], uint32_t keys, uint32_t rows) {
  product_fence();
  multiply_shared<kQueryRows, 0, 0, 4 * kPanels, 2, kKeys * 8, 2, kQueryRows * 8>(
      score, tile_descriptor(keys, 16, 1024), tile_descriptor(rows, 16, 1024), 0);
  product_commit();
}

// Sums of dK or dV in halves of the columns: one product of 256 takes more registers than a thread has at the launch, which ptxas refuses.
struct Sums {
  float half[2][kHdim / 4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kHdim / 4; ++i) half[0][i] = half[1][i] = 0.f;
    hold();
  }
  __device__ __forceinline__ void hold() { pin(half[0]), pin(half[1]); }
};

// sums (64 keys, columns) += words rows.
TILEKILN_DEVICE void issue_sums(Sums& sums, const uint32_t (&word)[kQueryRows / 16][4], uint32_t rows) {
  product_fence();
#pragma unroll
  for (int half = 0; half < 2; ++half)
    add_registers<kHdim / 2, 1, kQueryRows / 16, 128>(
        sums.half[half], word, tile_descriptor(rows + half * (kPanels / 2) * kQueryRows * 128, kQueryRows * 128, 1024));
  product_commit();
}

TILEKILN_DEVICE void compute_dv(const Row& p, Shared& s, int thread) {
  const int lane = thread & 31, warp = thread >> 5, group = p.nhead_q / p.shares;
  Sums dv;
  float score[kQueryRows / 2];
  uint32_t weight[kQueryRows / 16][4];
  uint32_t k = shared_address(s.k);
  uint32_t at = 0, turns = 0;

  const auto issue_dv = [&](uint32_t step) {
    wait(s.dout_full[step % kStages], step / kStages & 1);
    issue_sums(dv, weight, shared_address(s.dout[step % kStages]));
  };
  const auto begin = [&] {
    at = uniform(at), turns = uniform(turns);
    dv.clear();
    wait(s.kv_full, turns & 1);
    ++turns;
  };
  const auto step = [&](auto first, auto extras, const Turn& t, int g, int m, bool) {
    // Uniform, else every descriptor of k is worked out ahead, and they are more than the registers hold.
    at = uniform(at), k = uniform(k);
    const int slot = at % kStages, u = at & 1;
    wait(s.q_full[slot], at / kStages & 1);
    issue_scores(score, k, shared_address(s.q[slot]));
    if constexpr (!first.value) issue_dv(at - 1);
    Scores<extras.value, kQueryRows, 64> scores(p, t, group, g, m, t.tile * kKeys, warp * 16, lane, weight);
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
        dv.hold();
        warp_arrive(s.dout_empty[(at + kStages - 1) % kStages], lane);
      }
    });
    warp_arrive(s.q_empty[slot], lane);
    wait(s.weights.empty[u], (at >> 1 & 1) ^ 1);
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {
      const uint32_t (&word)[4] = scores.undropped(i);
      s.weights.word[u][i][thread] = make_uint4(word[0], word[1], word[2], word[3]);
    }
    warp_arrive(s.weights.full[u], lane);
    if constexpr (scores.kDrops) {
#pragma unroll
      for (int i = 0; i < kQueryRows / 16; ++i) pin(weight[i]);
    }
    ++at;
  };
  const auto end = [&](const Turn& t) {
    if (t.length > 0) {
      issue_dv(at - 1);
      product_wait<0>();
      dv.hold();
      warp_arrive(s.dout_empty[(at - 1) % kStages], lane);
    }
    warp_arrive(s.kv_empty, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) store_keys(p, t, dv_of(p), warp * 16, half * kHdim / 2, lane, dv.half[half]);
  };
  walk_tiles(p, begin, step, end);
}

TILEKILN_DEVICE void compute_dk(const Row& p, Shared& s, int thread) {
  const int lane = thread & 31, warp = thread >> 5, group = p.nhead_q / p.shares;
  Sums dk;
  float score[kQueryRows / 2];
  uint32_t ds[kQueryRows / 16][4];
  uint32_t v = shared_address(s.v);
  uint32_t at = 0, turns = 0;

  const auto issue_dk = [&](uint32_t step) {
    wait(s.q_full[step % kStages], step / kStages & 1);
    issue_sums(dk, ds, shared_address(s.q[step % kStages]));
  };
  const auto begin = [&] {
    at = uniform(at), turns = uniform(turns);
    dk.clear();
    wait(s.kv_full, turns & 1);
    ++turns;
  };
  const auto step = [&](auto first, auto extras, const Turn& t, int g, int m, bool) {
    at = uniform(at), v = uniform(v);  // as in compute_dv
    const int slot = at % kStages, u = at & 1;
    if constexpr (!first.value) issue_dk(at - 1);
    wait(s.dout_full[slot], at / kStages & 1);
    issue_scores(score, v, shared_address(s.dout[slot]));  // dP^T
    uint32_t weight[kQueryRows / 16][4];
    Scores<extras.value, kQueryRows, 64> scores(p, t, group, g, m, t.tile * kKeys, warp * 16, lane, weight);
    scores.draw();
    wait(s.weights.full[u], at >> 1 & 1);
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {
      const uint4 line = s.weights.word[u][i][thread];
      uint32_t (&of)[4] = scores.undropped(i);
      of[0] = line.x, of[1] = line.y, of[2] = line.z, of[3] = line.w;
    }
    wait(s.ds_empty[u], (at >> 1 & 1) ^ 1);
    if constexpr (!first.value) {
      product_wait<1>();
      dk.hold();
      warp_arrive(s.q_empty[(at + kStages - 1) % kStages], lane);
    }
    product_wait<0>();
    pin(score);
    const int quarter = lane >> 3, to_row = warp * 16 + (quarter & 1) * 8 + (lane & 7);
    const uint32_t to = shared_address(s.ds[u]) + to_row * 128;
    uint16_t* const dbias = scores.dbias();
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {
      const float2 delta[2] = {scores.delta_of(s.delta[slot], 2 * i), scores.delta_of(s.delta[slot], 2 * i + 1)};
      scores.differentiate(i, score, delta, dbias, ds[i]);
      store_matrices(to + ((2 * i + (quarter >> 1)) ^ (to_row & 7)) * 16, ds[i]);
    }
    async_shared_fence();
    warp_arrive(s.ds_full[u], lane);
    warp_arrive(s.weights.empty[u], lane);
    warp_arrive(s.dout_empty[slot], lane);
    ++at;
  };
  const auto end = [&](const Turn& t) {
    if (t.length > 0) {
      issue_dk(at - 1);
      product_wait<0>();
      dk.hold();
      warp_arrive(s.q_empty[(at - 1) % kStages], lane);
    }
    warp_arrive(s.kv_empty, lane);
#pragma unroll
    for (int half = 0; half < 2; ++half) store_keys(p, t, dk_of(p), warp * 16, half * kHdim / 2, lane, dk.half[half]);
  };
  walk_tiles(p, begin, step, end);
}

}  // namespace tilekiln::cuda::fmha_bwd
