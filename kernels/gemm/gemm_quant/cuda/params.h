// SPDX-License-Identifier: MIT
// Parameters of the kernel that quantises rows of a product, its one argument. Plain data.
#pragma once

#include "kernels/gemm/gemm/cuda/params.h"

namespace tilekiln::cuda::gemm {

constexpr int kQuantises = 2;  // Build::groups of its build, which multiplies nothing

struct QuantiseParams {
  const float* x;  // (rows, columns), one after another
  void* out;
  int64_t out_row;  // in bytes
  float* scale;
  float given;  // above 0: the scale of all rows
  int columns;
  int fp8;  // else int8
};

}  // namespace tilekiln::cuda::gemm
