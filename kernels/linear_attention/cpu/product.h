// SPDX-License-Identifier: MIT
// Products of small fp32 matrices in scratch, a register block at a time: a number of A meets the vectors of a row of B.
#pragma once

#include "kernels/backends/cpu/compute.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

enum class Walk { rows, columns };  // A[r][w] lies at a + r a_row + w, or at a + w a_row + r

template <Walk kWalk, int R, int N, class Finish>
TILEKILN_INLINE void product_block(const float* a, long long a_row, const float* b, long long b_row, int depth,
                                   Finish&& finish) {
  vf sum[R][N];
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) { TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = zero(); }
  TILEKILN_UNROLL(4) for (int w = 0; w < depth; ++w) {
    vf x[N];
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) x[j] = load(b + w * b_row + j * kLanes);
    TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
      const word y = load_word(kWalk == Walk::rows ? a + r * a_row + w : a + w * a_row + r);
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = ComputeFp32::multiply_add(sum[r][j], x[j], y);
      before_loads(sum[r][0], sum[r][N - 1]);
    }
  }
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) finish(r, j * kLanes, sum[r][j]);
  }
}

// finish(row, column, the sum over w < depth of A[row][w] B[w][column ..]) for every vector of `rows` rows, an even number, and `columns`, whole vectors.
template <Walk kWalk, class Finish>
TILEKILN_INLINE void product(const float* a, long long a_row, const float* b, long long b_row, int depth, int rows,
                             int columns, Finish&& finish) {
  const auto columns_from = [&]<int N>(int c) __attribute__((always_inline)) {
    constexpr int R = block_rows(N);
    int r = 0;
    const auto step = [&]<int Rows>() __attribute__((always_inline)) {
      product_block<kWalk, Rows, N>(kWalk == Walk::rows ? a + r * a_row : a + r, a_row, b + c, b_row, depth,
                                    [&](int i, int j, vf sum)
                                        __attribute__((always_inline)) { finish(r + i, c + j, sum); });
      r += Rows;
    };
    while (r + R <= rows) step.template operator()<R>();
    if constexpr (R > 4) {
      while (r + 4 <= rows) step.template operator()<4>();
    }
    while (r + 2 <= rows) step.template operator()<2>();
  };
  int c = 0;
  for (; c + kBlockVectors * kLanes <= columns; c += kBlockVectors * kLanes)
    columns_from.template operator()<kBlockVectors>(c);
  if constexpr (kBlockVectors == 4) {
    for (; c + 2 * kLanes <= columns; c += 2 * kLanes) columns_from.template operator()<2>(c);
  }
  for (; c < columns; c += kLanes) columns_from.template operator()<1>(c);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
