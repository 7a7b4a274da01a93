// SPDX-License-Identifier: MIT
// Parameters of CUDA's kernels of grouped products, their one argument. Plain data.
#pragma once

#include "kernels/gemm/gemm/cuda/params.h"

namespace tilekiln::cuda::gemm {

// Groups of rows: rows [starts[g], starts[g + 1]) of a and out are multiplied by the g-th b. A group whose end is below
// its start is empty; rows end where a does, and after counts[g] of them.
struct GroupParams {
  Params product;                   // of the first group, with all rows; its grid holds steps and pairs alone
  const int *starts, *counts;       // the second null: without
  int64_t bias_step, factors_step;  // in elements; of b's factors of blocks
  int groups;
};

}  // namespace tilekiln::cuda::gemm
