// SPDX-License-Identifier: MIT
// The warpgroups of the Hopper backward that compute, head dims above 128: a tile of 64 keys, and a product's sums
// each.
//
//     dv:  S^T = K Q^T, P, dV += P^T dO;    dk:  dP^T = V dO^T, dS, dK += dS^T Q;    dq:  dQ = dS K
//
// The sums of dV and of dK (64 x 256 in fp32) fill half of a warpgroup's registers each, so one warpgroup has the one
// and one the other. Both have the same 64 keys for rows of their scores: P^T passes from thread to thread in shared
// memory, and stays first operand of dV where it was made; dS^T stays first operand of dK and goes through shared
// memory to the third warpgroup. They follow each other at a distance of two steps at most. dq: queries.h.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/walk.h"

namespace tilekiln::cuda::fmha_bwd {

// Sums of dK or dV in parts of whole panels: one product of 256 columns takes more registers than a thread has at the
// launch, which ptxas refuses.
template <int kWidth> struct Sums {
  static constexpr int kParts = kWidth == 192 ? 3 : 2, kColumns = kWidth / kParts;
  Fragment<kColumns> part[kParts];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kParts * kColumns / 2; ++i) part[i % kParts].v[i / kParts] = 0.f;
#pragma unroll
    for (int i = 0; i < kParts; ++i) pin(part[i].v);
  }
  template <int kPending> __device__ __forceinline__ void wait() {
    product_wait<kPending>();
#pragma unroll
    for (int i = 0; i < kParts; ++i) pin(part[i].v);
  }
  __device__ __forceinline__ void store(const Params& p, const Turn& t, const KeyRows& to, int warp, int lane) const {
#pragma unroll
    for (int i = 0; i < kParts; ++i) store_keys(p, t, to, warp * 16, i * kColumns, lane, part[i].v);
  }
};

// Common to the two warpgroups: their place, and the products of all tiles. Keys: K or V. kWidth: of the sums.
template <class Keys, int kWidth> struct Half : Multiplier {
  Operand<Keys> keys;
  Sums<kWidth> sums;

  __device__ __forceinline__ Half(const Params& p, Shared& s, const Warpgroup& w, const Keys& keys)
      : Multiplier(p, s, w), keys(keys.from(0)) {}

  template <class Rows> __device__ __forceinline__ void add(const Words& words, const Rows& rows) {
    wgmma_fence();  // sums (64 keys, columns) += words rows
#pragma unroll
    for (int i = 0; i < sums.kParts; ++i) mma(sums.part[i], words, rows.turned().from(i * sums.kColumns));
    wgmma_commit();
  }
  __device__ __forceinline__ void begin() {
    at = uniform(at), turns = uniform(turns);
    sums.clear();
    tile_of_keys().wait();
  }
  // Uniform, else the operands of all products are worked out ahead, and they are more than the registers hold.
  __device__ __forceinline__ void begin_step() { at = uniform(at), keys = keys.kept(); }
  template <class Last>
  __device__ __forceinline__ void end(const Turn& t, const Last& last, const Words& words, const KeyRows& to) {
    if (t.length > 0) {
      add(words, last.wait());
      sums.template wait<0>();
      last.release();
    }
    tile_of_keys().release();
    ++turns;
    sums.store(p, t, to, warp, lane);
  }
};

struct ValueGradients : Half<KeyTile, kHdimV> {
  Words weight;

  __device__ __forceinline__ ValueGradients(const Params& p, Shared& s, const Warpgroup& w)
      : Half(p, s, w, s.of_keys[0].k) {}

  template <bool kFirst, int kExtras> __device__ __forceinline__ void step(const Turn& t, int g, int m, bool) {
    begin_step();
    const auto queries = this->queries(at);
    const auto gradients = this->gradients(at);
    multiply(keys, queries.wait());
    if constexpr (!kFirst) add(weight, this->gradients(at - 1).wait());
    Scores<kExtras, kQueryRows, 64> scores(p, t, group, g, m, t.tile * kKeys, warp * 16, lane, weight.word);
    scores.draw();
    if constexpr (kFirst)
      wgmma_wait<0>(score);
    else
      wgmma_wait<1>(score);
    scores.weigh(score.v, s.lse[queries.at.index()], [&] {
      if constexpr (!kFirst) {
        pin(score.v);
        sums.wait<0>();
        this->gradients(at - 1).release();
      }
    });
    queries.release();
    const Loader<WeightPipe> to(s.weights, {at});
    Weights& weights = to.acquire();
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {
      const uint32_t (&word)[4] = scores.undropped(i);
      weights.word[i][warp * 32 + lane] = make_uint4(word[0], word[1], word[2], word[3]);
    }
    to.commit_warp(lane);
    if constexpr (scores.kDrops) {
#pragma unroll
      for (int i = 0; i < kQueryRows / 16; ++i) pin(weight.word[i]);
    }
    ++at;
  }
  __device__ __forceinline__ void end(const Turn& t) { Half::end(t, gradients(at - 1), weight, dv_of(p)); }
};

struct KeyGradients : Half<ValueTile, kHdim> {
  Words ds;

  __device__ __forceinline__ KeyGradients(const Params& p, Shared& s, const Warpgroup& w)
      : Half(p, s, w, s.of_keys[0].v) {}

  template <bool kFirst, int kExtras> __device__ __forceinline__ void step(const Turn& t, int g, int m, bool) {
    begin_step();
    const auto queries = this->queries(at);
    const auto gradients = this->gradients(at);
    if constexpr (!kFirst) add(ds, this->queries(at - 1).wait());
    multiply(keys, gradients.wait());  // dP^T
    uint32_t weight[kQueryRows / 16][4];
    Scores<kExtras, kQueryRows, 64> scores(p, t, group, g, m, t.tile * kKeys, warp * 16, lane, weight);
    scores.draw();
    const Reader<WeightPipe> from(s.weights, lane, at);
    const Weights& weights = from.wait();
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {
      const uint4 line = weights.word[i][warp * 32 + lane];
      uint32_t (&of)[4] = scores.undropped(i);
      of[0] = line.x, of[1] = line.y, of[2] = line.z, of[3] = line.w;
    }
    const Loader<DsPipe> to(s.ds(), {at});
    const DsTile& tile = to.acquire();
    if constexpr (!kFirst) {
      sums.wait<1>();
      this->queries(at - 1).release();
    }
    wgmma_wait<0>(score);
    differentiate(scores, gradients.at.index(), tile, warp * 16, scores.dbias(), ds);
    to.commit_stores(lane);
    from.release();
    gradients.release();
    ++at;
  }
  __device__ __forceinline__ void end(const Turn& t) { Half::end(t, queries(at - 1), ds, dk_of(p)); }
};

// The roles of a CTA.
template <class Moves, class MakesDq>
TILEKILN_DEVICE void run(const Params& p, Shared& s, const Moves& moves, const MakesDq& makes_dq) {
  Warps::run([&] { s.init(); }, moves, multiplies<ValueGradients>(p, s), multiplies<KeyGradients>(p, s), makes_dq);
}

}  // namespace tilekiln::cuda::fmha_bwd
