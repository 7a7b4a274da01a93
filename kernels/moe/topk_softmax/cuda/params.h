// SPDX-License-Identifier: MIT
// Parameters of CUDA's topk_softmax are the checked problem; here is what one build of it is made for.
#pragma once

#include "kernels/moe/topk_softmax/engine.h"

namespace tilekiln::cuda::moe {

// Constants of a build that the host must know; the cubin holds one as `topk_build`.
struct Build {
  int threads;
  int dtype;  // by value of the axis
};

}  // namespace tilekiln::cuda::moe
