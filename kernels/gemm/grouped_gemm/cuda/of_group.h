// SPDX-License-Identifier: MIT
// Fields of Params that epilogues read, of one group: its rows end before `end`.
#pragma once

#include <type_traits>

#include "kernels/backends/cuda/ptx.h"
#include "kernels/backends/cuda/tile/element.h"
#include "kernels/gemm/grouped_gemm/cuda/params.h"

namespace tilekiln::cuda::gemm {

struct OfGroup {
  void* out;
  int64_t out_row, out_batch;
  const Extra (&extra)[2];
  const float *bias, *row_scale, *column_scale;
  float alpha, clamp_min, clamp_max;
  int m, n, activation, features;
};
TILEKILN_DEVICE OfGroup group_of(const GroupParams& of, int group, int end) {
  const Params& p = of.product;
  const float* const bias = p.bias == nullptr ? nullptr : p.bias + group * of.bias_step;
  const float *rows = nullptr, *columns = nullptr;
  if constexpr (std::is_same_v<BuildElement, s8>) {
    rows = p.row_scale;
    if (p.column_scale != nullptr) columns = p.column_scale + group * of.factors_step;
  }
  return {p.out, p.out_row,   0,           p.extra, bias, rows,         columns,
          1.f,   p.clamp_min, p.clamp_max, end,     p.n,  p.activation, p.features};
}

}  // namespace tilekiln::cuda::gemm
