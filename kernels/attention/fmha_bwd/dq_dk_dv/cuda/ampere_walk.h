// SPDX-License-Identifier: MIT
// The walk of the backward by mma.sync over the query tiles of a key tile.
//
//     S = q k^T, P          while the next q comes
//     dP = dO v^T, dV, dS   all have dS, and the turn to add dQ has come
//     dK, dQ                while the next dO comes
//
// S^T and dP^T have keys for rows, 16 a warp. Head dims to 128: a warp has all query rows of its keys, so P^T and dS^T stay in registers
// as the first operands of dV and dK. Above, the sums of dV and dK of 16 keys fill two warps: each has half of the query rows in its
// scores and half of the columns in its sums, and P^T and dS^T pass through shared memory from one to the other. v stays in
// registers, of a warp's columns: two warps add each other's parts of dP^T. dS^T goes through shared memory to be, transposed,
// the first operand of dQ.
#pragma once

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/ampere_tile.h"

namespace tilekiln::cuda::fmha_bwd {

template <int kExtras>
TILEKILN_DEVICE void walk(const AmpereRow& a, Shared& s, const Walk& order, const Turn& t, const Sequence& of,
                          float (&dk)[kSums], float (&dv)[kSums], const uint32_t (&v)[kColumns / 16][4]) {
  constexpr int kRows = kQueryRows / kParts;  // of the tile, in this warp's scores
  const Row& p = a.row;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int own_key = key_of(warp), part = part_of(warp);
  const int own_row = part * kRows, own_piece = part * (kColumns / 8);
  const uint32_t k_at = shared_address(s.k), dout_at = shared_address(s.dout), ds_at = shared_address(s.ds);
  // Loads P^T and dS^T of 16 query rows and this warp's keys, where they lie in shared memory.
  const auto load_words = [&](uint32_t (&word)[4], int piece) {
    load_matrices(word, ds_at + place<kDsColumns>(own_key + (lane & 15), piece + (lane >> 4)));
  };
  // Worked out again where it is asked for: else the addresses of all products are kept, more than the registers hold.
  const auto again = [&] { return kParts == 1 ? lane : fresh_lane(); };
  int g, m;
  order.first_step(t, g, m);
  load_queries(a, t, of, shared_address(s.q[0]), g, m);
  load_gradients(a, s, order, t, of, g, m);
  unsigned* added = nullptr;  // the counter of the step before
#pragma unroll 1
  for (int c = 0; c < t.length; ++c) {
    if (c % kWarps == 0) count_before(s, order, t, c, g, m);
    const int64_t sum = (of.first_tile + g * order.head_tiles() + m) * p.slots + t.slot;
    int g_next = g, m_next = m;
    order.next_step(t, g_next, m_next);
    const uint32_t q_at = shared_address(s.q[c & 1]);
    copy_async_wait<0>();
    __syncthreads();  // q(m) and dout(m) are there, and all have stored the dq before
    if (c + 1 < t.length) load_queries(a, t, of, shared_address(s.q[1 - (c & 1)]), g_next, m_next);

    float score[kRows / 2] = {};
    multiply_rows<kRows, kHdim>(score, q_at, own_row, 0, again(), [&](int i, uint32_t (&keys)[4]) {
      load_matrices(keys, k_at + place<kHdim>(own_key + (lane & 15), 2 * i + (lane >> 4)));
    });
    if (threadIdx.x == kCloser && added) end_turn(added);
    uint32_t weight[kRows / 16][4];
    Scores<kExtras, kRows, 16> scores(p, t, order.group, g, kParts * m + part, t.tile * kKeys + own_key, 0, lane,
                                      weight);
    scores.draw();
    scores.weigh(score, s.lse + own_row, [] {});
    if constexpr (kParts > 1) {
#pragma unroll
      for (int i = 0; i < kRows / 16; ++i) store_words<true>(s, weight[i], own_key, own_row / 16 + i, lane);
    }

    const auto multiply_gradients = [&](float (&to)[kRows / 2], int first) {  // dP^T of this warp's columns
#pragma unroll
      for (int i = 0; i < kRows / 2; ++i) to[i] = 0.f;
      multiply_rows<kRows, kColumns>(to, dout_at, first, own_piece, again(), [&](int i, uint32_t (&keys)[4]) {
#pragma unroll
        for (int u = 0; u < 4; ++u) keys[u] = v[i][u];
      });
    };
    if constexpr (kParts > 1) {
      static_assert(kParts == 1 || (kParts == 2 && kRows == 16));
      multiply_gradients(score, kRows - own_row);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        s.partial[i * kThreads + threadIdx.x] =
            make_float4(score[4 * i], score[4 * i + 1], score[4 * i + 2], score[4 * i + 3]);
    }
    multiply_gradients(score, own_row);
    if constexpr (kParts > 1) {
      named_sync(1 + own_key / 16, 32 * kParts);  // P^T of these keys and the other's parts are there
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float4 other = s.partial[i * kThreads + (threadIdx.x ^ (kThreads / 2))];
        score[4 * i] += other.x, score[4 * i + 1] += other.y, score[4 * i + 2] += other.z, score[4 * i + 3] += other.w;
      }
    }
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {  // dv += P^T dout
      if constexpr (kParts > 1) {
        uint32_t word[4];
        load_words(word, kQueryRows / 8 + 2 * i);
        add_product(dv, word, dout_at, 16 * i, own_piece, again());
      } else {
        add_product(dv, weight[i], dout_at, 16 * i, 0, lane);
      }
    }
    uint16_t* const dbias = scores.dbias();
    uint32_t ds[kRows / 16][4];
#pragma unroll
    for (int i = 0; i < kRows / 16; ++i) {
      const float2 delta[2] = {scores.delta_of(s.delta + own_row, 2 * i),
                               scores.delta_of(s.delta + own_row, 2 * i + 1)};
      scores.differentiate(i, score, delta, dbias, ds[i]);
      store_words<false>(s, ds[i], own_key, own_row / 16 + i, lane);
    }
    unsigned* const counter = p.counters + sum;
    const int ahead = s.before[c % kWarps];
    if (threadIdx.x == 0 && ahead > 0) await_turn(counter, ahead);
    __syncthreads();  // all of dS is there, the turn has come, and all have done with dout
    if (c + 1 < t.length) load_gradients(a, s, order, t, of, g_next, m_next);
    DqSum dq(p, sum, ahead > 0);
#pragma unroll
    for (int i = 0; i < kQueryRows / 16; ++i) {  // dk += dS^T q
      if constexpr (kParts > 1) {
        uint32_t word[4];
        load_words(word, 2 * i);
        add_product(dk, word, q_at, 16 * i, own_piece, again());
      } else {
        add_product(dk, ds[i], q_at, 16 * i, 0, lane);
      }
    }
    dq.add(ds_at, k_at, again());
    dq.store();
    added = counter;
    g = g_next, m = m_next;
  }
  __syncthreads();
  if (threadIdx.x == 0) end_turn(added);
}

}  // namespace tilekiln::cuda::fmha_bwd
