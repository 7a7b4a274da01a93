// SPDX-License-Identifier: MIT
// S = K Q^T in passes of words, so that the part of Q that a pass reads stays in L1.
#pragma once

#include "kernels/attention/cpu/microkernel.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Words of a pass: those of 64 rows of Q are half of an L1 of 48 KB.
constexpr int kPassWords = 96;

// S[r][:] (+)= sum_w K[r][w] Q^T[w][:] over `words` words.
template <class Compute, int R, int N>
TILEKILN_INLINE void score_pass(StridedRows<R> rows, int words, const float* q, float* s, bool first) {
  vf sum[R][N];
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = first ? zero() : load(s + r * kTileQ + j * kLanes);
  }
  TILEKILN_UNROLL(2) for (i64 w = 0; w < words; ++w) {
    vf x[N];
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) x[j] = load(q + w * kTileQ + j * kLanes);
    TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
      const word y = rows.word_of(r);
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = Compute::multiply_add(sum[r][j], x[j], y);
      before_loads(sum[r][0], sum[r][N - 1]);
    }
    rows.next_word();
  }
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) store(s + r * kTileQ + j * kLanes, sum[r][j]);
  }
}

// S of `keys` keys, a multiple of 4, and N vectors. step(): called once a group of keys.
template <class Compute, int N, class Step>
TILEKILN_INLINE void score_passes(const Keys& keys, int count, int words, const float* q, float* s, Step&& step) {
  constexpr int R = block_rows(N), kStep = R % 4 ? 2 * R : R;  // leaves a multiple of 4
  for (int word = 0; word < words; word += kPassWords) {
    const int these = words - word < kPassWords ? words - word : kPassWords;
    const Keys part = {keys.base + word * i64(sizeof(float)), keys.stride, count};
    const float* const columns = q + i64(word) * kTileQ;
    int key = 0;
    for (; key + kStep <= count; key += kStep) {
      for (int r = key; r < key + kStep; r += R)
        score_pass<Compute, R, N>(StridedRows<R>(part, r), these, columns, s + r * kTileQ, word == 0);
      step();
    }
    for (; key < count; key += 4)
      score_pass<Compute, 4, N>(StridedRows<4>(part, key), these, columns, s + key * kTileQ, word == 0);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
