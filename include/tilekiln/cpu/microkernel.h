// The two register-blocked products: R rows x N vectors of accumulators, broadcasting K or V from where it lies.
#pragma once

#include "tilekiln/cpu/compute.h"
#include "tilekiln/cpu/tile.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// S[r][:] = sum_w K[r][w] Q^T[w][:], and maximum = max(maximum, S). k: the address of each key's row.
template <class Compute, int R, int N>
TILEKILN_INLINE void score_rows(const char* const* k, int words, const float* q, float* s, vf* maximum) {
  vf sum[R][N];
  const char* row[R];
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) row[r] = k[r];
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = zero();
  }
  TILEKILN_UNROLL(2) for (i64 w = 0; w < words; ++w) {
    vf x[N];
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) x[j] = load(q + w * kTileQ + j * kLanes);
    TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
      const vf y = broadcast_word(row[r] + w * 4);
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = Compute::multiply_add(sum[r][j], x[j], y);
    }
  }
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) {
      store(s + r * kTileQ + j * kLanes, sum[r][j]);
      maximum[j] = max(maximum[j], sum[r][j]);
    }
  }
}

// O[r][:] = alpha O[r][:] + sum_w V[w][r] P[w][:] over words [begin, end). A null alpha: O holds nothing yet.
template <class Compute, int R, int N>
TILEKILN_INLINE void value_rows(const float* p, const float* v, i64 v_stride, int begin, int end, float* o, const vf* alpha) {
  vf sum[R][N];
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = zero();
  }
  if (alpha) {
    TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = mul(load(o + r * kTileQ + j * kLanes), alpha[j]);
    }
  }
  TILEKILN_UNROLL(2) for (i64 w = begin; w < end; ++w) {
    vf x[N];
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) x[j] = load(p + w * kTileQ + j * kLanes);
    TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
      const vf y = broadcast_word(v + w * v_stride + r);
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = Compute::multiply_add(sum[r][j], x[j], y);
    }
  }
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) store(o + r * kTileQ + j * kLanes, sum[r][j]);
  }
}

// O += V^T P for all `rows` rows of O^T (a multiple of 4) and N vectors.
template <class Compute, int N>
TILEKILN_INLINE void value_block(const float* p, const float* v, i64 v_stride, int begin, int end, float* o, int rows,
                                 const vf* alpha) {
  constexpr int R = block_rows(N);
  int d = 0;
  const auto step = [&]<int Rows>() __attribute__((always_inline)) {
    value_rows<Compute, Rows, N>(p, v + d, v_stride, begin, end, o + d * kTileQ, alpha);
    d += Rows;
  };
  while (d + R <= rows) step.template operator()<R>();
  if constexpr (R != 4) {
    while (d + 4 <= rows) step.template operator()<4>();
  }
  if constexpr (R % 4 != 0) {
    if (d < rows) step.template operator()<2>();
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
