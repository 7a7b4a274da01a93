// SPDX-License-Identifier: MIT
// Factors of the blocks of a tile, as multiply_apart asks for them: those of the next step are on their way.
#pragma once

#include "kernels/gemm/gemm/cuda/params.h"

namespace tilekiln::cuda::gemm {

template <int kParts> struct BlockFactors {
  const float *of_a[2], *of_b[kParts];
  int64_t step_a, step_b;
  float a[2], b[kParts], next_a[2], next_b[kParts];

  // Factors of rows `row` and row + 8 of a, or of the `last` that there is, and of blocks block(i) of b; steps [begin,
  // end).
  template <class Block>
  __device__ __forceinline__ BlockFactors(const Factors& a, int row, int last, const Factors& b, Block&& block,
                                          int begin, int end)
      : step_a(a.step), step_b(b.step) {
#pragma unroll
    for (int h = 0; h < 2; ++h) of_a[h] = a.data + min(row + 8 * h, last) * a.line;
#pragma unroll
    for (int i = 0; i < kParts; ++i) of_b[i] = b.data + block(i) * b.line;
    if (begin < end) load(begin);
  }
  __device__ __forceinline__ void load(int k) {
#pragma unroll
    for (int h = 0; h < 2; ++h) next_a[h] = __ldg(of_a[h] + k * step_a);
#pragma unroll
    for (int i = 0; i < kParts; ++i) next_b[i] = __ldg(of_b[i] + k * step_b);
  }
  __device__ __forceinline__ void step(int k, int last) {
    a[0] = next_a[0], a[1] = next_a[1];
#pragma unroll
    for (int i = 0; i < kParts; ++i) b[i] = next_b[i];
    load(min(k + 1, last - 1));
  }
  __device__ __forceinline__ float operator()(float sum, float part, int i, int at) const {
    return fmaf(a[i / 2 % 2] * b[at], part, sum);
  }
};

}  // namespace tilekiln::cuda::gemm
