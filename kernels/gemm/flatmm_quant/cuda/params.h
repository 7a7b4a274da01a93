// SPDX-License-Identifier: MIT
// Parameters of CUDA's products with packed words, their one argument, and what the build is made for. Plain data.
#pragma once

#include "kernels/gemm/engine.h"

namespace tilekiln::cuda::words {

struct Words {
  matrix::Grouped of;
  int panels, words, groups;
};
// A block has kColumns columns of a panel; its warps share k: few where processors have several blocks, else many.
constexpr int kColumns = 32, kRows = 16, kFewWarps = 8, kManyWarps = 16;

// Constants of a build that the host must know; the cubin holds one as `words_build`.
struct Build {
  int fp16;
  int panels;  // 0: the kernels of few rows; else one more than the matrix::Weights of those of panels.h
  int narrow;  // whose rows are int8
};

}  // namespace tilekiln::cuda::words
