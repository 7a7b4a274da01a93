// SPDX-License-Identifier: MIT
// The walk of the backward by mma.sync over the query tiles of a key tile.
//
//     S = q k^T, P          while the next q comes
//     dP = dO v^T, dV, dS   all have dS, and the turn to add dQ has come
//     dK, dQ                while the next dO comes
//
// S^T and dP^T have keys for rows, 16 a warp. Head dims to 128: a warp has all query rows of its keys, so P^T and dS^T
// stay in registers as the first operands of dV and dK. Above, the sums of dV and dK of 16 keys fill two warps: each
// has half of the query rows in its scores and half of the columns in its sums, and P^T and dS^T pass through shared
// memory from one to the other. v stays in registers, of a warp's columns: two warps add each other's parts of dP^T.
// dS^T goes through shared memory to be, transposed, the first operand of dQ.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/ampere_tile.h"

namespace tilekiln::cuda::fmha_bwd {

constexpr int kRows = kQueryRows / kParts;  // of the tile, in a warp's scores

// A warp's keys, and its part of the query rows and of the columns.
struct Own {
  int lane, key, part, row, piece;

  __device__ __forceinline__ Own(int lane, int warp)
      : lane(lane), key(key_of(warp)), part(part_of(warp)), row(part * kRows), piece(part * (kColumns / 8)) {}
  // The lane, worked out again where it is asked for: else the addresses of all products are kept, more than the
  // registers hold.
  __device__ __forceinline__ int again() const { return kParts == 1 ? lane : fresh_lane(); }
};

// dP^T of a warp's keys; where warps share keys each multiplies its columns, and they add each other's parts.
TILEKILN_DEVICE void multiply_gradients(Shared& s, const Own& own, float (&score)[kRows / 2], uint32_t dout_at,
                                        const uint32_t (&v)[kColumns / 16][4]) {
  const auto multiply = [&](float (&to)[kRows / 2], int first) {
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) to[i] = 0.f;
    multiply_rows<kRows, kColumns>(to, dout_at, first, own.piece, own.again(), [&](int i, uint32_t (&keys)[4]) {
#pragma unroll
      for (int u = 0; u < 4; ++u) keys[u] = v[i][u];
    });
  };
  if constexpr (kParts > 1) {
    static_assert(kParts == 1 || (kParts == 2 && kRows == 16));
    multiply(score, kRows - own.row);
#pragma unroll
    for (int i = 0; i < 2; ++i)
      s.partial[i * kThreads + threadIdx.x] =
          make_float4(score[4 * i], score[4 * i + 1], score[4 * i + 2], score[4 * i + 3]);
  }
  multiply(score, own.row);
  if constexpr (kParts > 1) {
    named_sync(1 + own.key / 16, 32 * kParts);  // P^T of these keys and the other's parts are there
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float4 other = s.partial[i * kThreads + (threadIdx.x ^ (kThreads / 2))];
      score[4 * i] += other.x, score[4 * i + 1] += other.y, score[4 * i + 2] += other.z, score[4 * i + 3] += other.w;
    }
  }
}

// sums += words^T rows of all query rows. The words, P^T or dS^T of a warp's keys, are its own, or where warps share
// keys those of shared memory, from piece `piece` on.
TILEKILN_DEVICE void add_rows(const Own& own, float (&sums)[kSums], const uint32_t (&words)[kRows / 16][4],
                              uint32_t ds_at, int piece, uint32_t rows) {
#pragma unroll
  for (int i = 0; i < kQueryRows / 16; ++i) {
    if constexpr (kParts > 1) {
      uint32_t word[4];
      load_matrices(word, ds_at + place<kDsColumns>(own.key + (own.lane & 15), piece + 2 * i + (own.lane >> 4)));
      add_product(sums, word, rows, 16 * i, own.piece, own.again());
    } else {
      add_product(sums, words[i], rows, 16 * i, 0, own.lane);
    }
  }
}

template <int kExtras>
TILEKILN_DEVICE void walk(const AmpereParams& a, Shared& s, const Walk& order, const Turn& t, const Sequence& of,
                          float (&dk)[kSums], float (&dv)[kSums], const uint32_t (&v)[kColumns / 16][4]) {
  const Params& p = a.common;
  const Own own(threadIdx.x & 31, threadIdx.x >> 5);
  const int lane = own.lane;
  const uint32_t k_at = shared_address(s.k), dout_at = shared_address(s.dout), ds_at = shared_address(s.ds);
  int g, m;
  order.first_step(t, g, m);
  load_queries(a, t, of, shared_address(s.q[0]), g, m);
  load_gradients(a, s, order, t, of, g, m);
  unsigned* added = nullptr;  // the counter of the step before
#pragma unroll 1
  for (int c = 0; c < t.length; ++c) {
    if (c % kWarps == 0) count_before(s, order, t, c, g, m);
    const int64_t sum = (of.first_tile + g * order.head_tiles() + m) * p.partials + t.partial;
    int g_next = g, m_next = m;
    order.next_step(t, g_next, m_next);
    const uint32_t q_at = shared_address(s.q[c & 1]);
    copy_async_wait<0>();
    __syncthreads();  // q(m) and dout(m) are there, and all have stored the dq before
    if (c + 1 < t.length) load_queries(a, t, of, shared_address(s.q[1 - (c & 1)]), g_next, m_next);

    float score[kRows / 2] = {};
    multiply_rows<kRows, kHdim>(score, q_at, own.row, 0, own.again(), [&](int i, uint32_t (&keys)[4]) {
      load_matrices(keys, k_at + place<kHdim>(own.key + (lane & 15), 2 * i + (lane >> 4)));
    });
    if (threadIdx.x == kCloser && added) end_turn(added);
    uint32_t weight[kRows / 16][4];
    Scores<kExtras, kRows, 16> scores(p, t, order.group, g, kParts * m + own.part, t.tile * kKeys + own.key, 0, lane,
                                      weight);
    scores.draw();
    scores.weigh(score, s.lse + own.row, [] {});
    if constexpr (kParts > 1) {
#pragma unroll
      for (int i = 0; i < kRows / 16; ++i) store_words<true>(s, weight[i], own.key, own.row / 16 + i, lane);
    }

    multiply_gradients(s, own, score, dout_at, v);              // dP^T
    add_rows(own, dv, weight, ds_at, kQueryRows / 8, dout_at);  // dv += P^T dout
    uint16_t* const dbias = scores.dbias();
    uint32_t ds[kRows / 16][4];
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      const float2 delta[2] = {scores.delta_of(s.delta + own.row, 2 * i),
                               scores.delta_of(s.delta + own.row, 2 * i + 1)};
      if constexpr (kExtras == kFunctions) scores.learn(i, score, delta);
      scores.differentiate(i, score, delta, dbias, ds[i]);
      store_words<false>(s, ds[i], own.key, own.row / 16 + i, lane);
    }
    if constexpr (kExtras == kFunctions) scores.store_learned();
    unsigned* const counter = p.counters + sum;
    const int ahead = s.before[c % kWarps];
    if (threadIdx.x == 0 && ahead > 0) await_turn(counter, ahead);
    __syncthreads();  // all of dS is there, the turn has come, and all have done with dout
    if (c + 1 < t.length) load_gradients(a, s, order, t, of, g_next, m_next);
    DqSum dq(p, sum, ahead > 0);
    add_rows(own, dk, ds, ds_at, 0, q_at);  // dk += dS^T q
    dq.add(ds_at, k_at, own.again());
    dq.store();
    added = counter;
    g = g_next, m = m_next;
  }
  __syncthreads();
  if (threadIdx.x == 0) end_turn(added);
}

}  // namespace tilekiln::cuda::fmha_bwd
