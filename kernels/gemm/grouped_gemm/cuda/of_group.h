// SPDX-License-Identifier: MIT
// Fields of Params that epilogues read, of one group: its rows end before `end`.
#pragma once

#include "kernels/backends/cuda/ptx.h"
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
  return {p.out, p.out_row,   0,           p.extra, bias, nullptr,      nullptr,
          1.f,   p.clamp_min, p.clamp_max, end,     p.n,  p.activation, p.features};
}

}  // namespace tilekiln::cuda::gemm
