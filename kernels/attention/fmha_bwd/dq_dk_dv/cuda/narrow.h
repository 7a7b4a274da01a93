// SPDX-License-Identifier: MIT
// The warpgroups of the Hopper backward that make dK and dV, head dims to 128: each has 64 of the tile's 128 keys.
//
// S^T and dP^T have keys for rows, so P^T and dS^T stay in registers as the first operands of dV and dK; dS^T goes
// through shared memory too, to the warpgroup of dQ (queries.h). dK of step m - 1 runs under the softmax of step m, dV
// under dS.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/walk.h"

namespace tilekiln::cuda::fmha_bwd {

// A warpgroup's keys of all tiles.
struct KeyGradients : Multiplier {
  const int own_keys;  // the first of this warpgroup's in the tile
  Operand<KeyTile> k;
  Operand<ValueTile> v;
  Fragment<kHdim> dk, dv;
  Words weight, ds;

  __device__ __forceinline__ KeyGradients(const Params& p, Shared& s, const Warpgroup& w)
      : Multiplier(p, s, w), own_keys(64 * w.index) {
    take(s.of_keys[0]);
  }
  __device__ __forceinline__ void take(const KeyTiles& keys) { k = keys.k.from(own_keys), v = keys.v.from(own_keys); }

  __device__ __forceinline__ void add(Fragment<kHdim>& sums, const Words& words, const QueryTile& rows) {
    wgmma_fence();  // sums += words rows
    mma(sums, words, rows.turned().from(0));
    wgmma_commit();
  }

  __device__ __forceinline__ void begin() {
    at = uniform(at), turns = uniform(turns);
#pragma unroll
    for (int i = 0; i < kHdim / 2; ++i) dk.v[i] = dv.v[i] = 0.f;
    clear(ds.word);
    pin(dk.v);
    pin(dv.v);
    const KeyTiles& keys = tile_of_keys().wait();
    if constexpr (kKeyStages > 1) take(keys);
  }
  template <bool kFirst, int kExtras>
  __device__ __forceinline__ void step(const Turn& t, int g, int m, bool fresh) {
    at = uniform(at), k = k.kept(), v = v.kept();  // else all operands are worked out ahead and take registers
    const auto queries = this->queries(at);
    const auto gradients = this->gradients(at);
    const auto issue = [&] {
      multiply(k, queries.wait());
      if constexpr (!kFirst) add(dk, ds, this->queries(fresh ? at : at - 1).next());
    };
    if constexpr (kExtras != kBiased) issue();
    Scores<kExtras, kQueryRows, 64, true> scores(p, t, group, g, m, t.tile * kKeys + own_keys, warp * 16, lane,
                                                 weight.word);
    const Loader<DsPipe> to(s.ds(), {at});
    if constexpr (kExtras == kGeneral || kExtras == kBiased) {
      const uint32_t place = to.acquire().at(0, own_keys + warp * 16, 0);  // where dS of these keys will lie
      if (kExtras == kBiased || p.features & kBiasPieces) scores.ask_bias(place, DsTile::kPanelBytes);
    }
    if constexpr (kExtras == kBiased) issue();
    scores.draw();
    if constexpr (kFirst)
      wgmma_wait<0>(score);
    else
      wgmma_wait<1>(score);
    scores.weigh(score.v, s.lse[queries.at.index()], [&] {
      if constexpr (!kFirst) {
        pin(score.v);
        wgmma_wait<0>(dk);
        if constexpr (kExtras == kPlain)
          this->queries(at - 1).release();
        else
          this->queries(at - 1).release_if(!fresh);
      }
    });
    const GradientTile& dout = gradients.wait();
    if constexpr (scores.kDrops) {
#pragma unroll
      for (int i = 0; i < kQueryRows / 16; ++i) pin(weight.word[i]);
    }
    multiply(v, dout);  // dP^T
    add(dv, weight, dout);
    uint16_t* const dbias = scores.dbias();
    const DsTile& tile = to.acquire();
    wgmma_wait<0>(score, dv);
    differentiate(scores, gradients.at.index(), tile, own_keys + warp * 16, dbias, ds);
    to.commit_stores(lane);
    gradients.release();
    ++at;
  }
  __device__ __forceinline__ void end(const Turn& t) {
    if (t.length > 0) {
      const auto last = queries(at - 1);
      add(dk, ds, last.next());
      wgmma_wait<0>(dk);
      last.release();
    }
    tile_of_keys().release();
    ++turns;
    store_keys(p, t, dv_of(p), own_keys + warp * 16, 0, lane, dv.v);
    store_keys(p, t, dk_of(p), own_keys + warp * 16, 0, lane, dk.v);
  }
};

// The roles of a CTA.
template <class Moves, class MakesDq>
TILEKILN_DEVICE void run(const Params& p, Shared& s, const Moves& moves, const MakesDq& makes_dq) {
  Warps::run([&] { s.init(); }, moves, multiplies<KeyGradients>(p, s), makes_dq);
}

}  // namespace tilekiln::cuda::fmha_bwd
