// SPDX-License-Identifier: MIT
// Parameters of CUDA's sample: the one argument of its kernel, and what one build is made for.
#pragma once

#include "kernels/norm/sample/engine.h"

namespace tilekiln::cuda::sample {

struct Params {
  tilekiln::norm::Sample problem;
  float* values;     // (blocks, columns): numbers of a block's row after the penalties; null: no row has any
  unsigned* counts;  // (blocks, columns): how often a token is there
};

constexpr int kDigitBits = 4, kDigits = 1 << kDigitBits;  // of a step towards a cut

// Constants of a build that the host must know; the cubin holds one as `sample_build`.
struct Build {
  int threads;
  int dtype;  // by value of the axis
};

}  // namespace tilekiln::cuda::sample
