// SPDX-License-Identifier: MIT
// Parameters of CUDA's reshape_and_cache: the one argument of its kernel, and what the build is made for.
#pragma once

#include "kernels/tensor/reshape_and_cache/engine.h"

namespace tilekiln::cuda::cache_write {

struct Params {
  tensor::CacheWrite problem;
  int wide;          // heads begin at whole vectors on either side, and are as long
  int keys, values;  // vectors or elements of a head
};

// Constants of a build that the host must know; the cubin holds one as `cache_write_build`.
struct Build {
  int threads;
  int dtype;  // by value of the axis
  int early;  // 1: it may begin under the launch before it
};

}  // namespace tilekiln::cuda::cache_write
