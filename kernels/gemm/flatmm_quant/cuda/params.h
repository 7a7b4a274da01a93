// Parameters of CUDA's products with packed words, their one argument, and what the build is made for. Plain data.
#pragma once

#include "kernels/gemm/engine.h"

namespace tilekiln::cuda::words {

struct Words {
  matrix::Grouped of;
  int panels, words, groups;
};
// A block has kColumns columns of a panel; its kWarps warps share k.
constexpr int kColumns = 32, kWarps = 16, kRows = 16;

// Constants of a build that the host must know; the cubin holds one as `words_build`.
struct Build { int threads, fp16; };

}  // namespace tilekiln::cuda::words
