// SPDX-License-Identifier: MIT
// One register-blocked product for every matrix that a backward pass needs: C[r][:] += sum_w A[r][w] B[w][:], the words of A
// broadcast, the vectors of B and C aligned. Both operands lie in scratch, so strides are whole registers.
#pragma once

#include "kernels/attention/cpu/ahead.h"
#include "kernels/attention/cpu/tile.h"
#include "kernels/backends/cpu/compute.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

enum class Into { overwrite, add };      // C = A B, C += A B
enum class Broadcast { rows, columns };  // A[r][w] lies at a + r stride + w, or at a + w stride + r

template <class Compute, Broadcast kBroadcast, int R, int N>
TILEKILN_INLINE void product_rows(Into into, const float* a, i64 a_stride, const float* b, i64 b_stride, i64 begin,
                                  i64 end, float* c, i64 c_stride) {
  vf sum[R][N];
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) { TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = zero(); }
  if (into == Into::add) {
    TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = load(c + r * c_stride + j * kLanes);
    }
  }
  TILEKILN_UNROLL(4) for (i64 w = begin; w < end; ++w) {
    vf x[N];
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) x[j] = load(b + w * b_stride + j * kLanes);
    TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
      const word y = load_word(kBroadcast == Broadcast::rows ? a + r * a_stride + w : a + w * a_stride + r);
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = Compute::multiply_add(sum[r][j], x[j], y);
      before_loads(sum[r][0], sum[r][N - 1]);
    }
  }
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) store(c + r * c_stride + j * kLanes, sum[r][j]);
  }
}

// `rows` rows of C, a multiple of 4, and `vectors` vectors of each; words [begin, end). Fetches ahead meanwhile.
template <class Compute, Broadcast kBroadcast>
void product(Into into, const float* a, i64 a_stride, const float* b, i64 b_stride, int begin, int end, float* c,
             i64 c_stride, int rows, int vectors, Ahead& ahead) {
  vector_groups(0, vectors, [&]<int N>(int j) __attribute__((always_inline)) {
    constexpr int R = block_rows(N);
    int r = 0;
    const auto step = [&]<int Rows>() __attribute__((always_inline)) {
      ahead.step();
      product_rows<Compute, kBroadcast, Rows, N>(into, kBroadcast == Broadcast::rows ? a + r * a_stride : a + r,
                                                 a_stride, b + j * kLanes, b_stride, begin, end,
                                                 c + r * c_stride + j * kLanes, c_stride);
      r += Rows;
    };
    while (r + R <= rows) step.template operator()<R>();
    if constexpr (R != 4) {
      while (r + 4 <= rows) step.template operator()<4>();
    }
    if constexpr (R % 4 != 0) {
      if (r < rows) step.template operator()<2>();
    }
  });
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
