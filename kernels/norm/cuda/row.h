// The rows of CUDA's kernels over rows of arrays: a checked problem, and how its rows may be read. What one build is made for.
#pragma once

#include "kernels/norm/engine.h"
#include "kernels/norm/gated.h"
#include "kernels/norm/softmax/engine.h"

namespace tilekiln::cuda::norm {

template <class Problem> struct Row {
  Problem problem;
  int wide;   // every row of every array begins at 16 bytes
  int warps;  // a row a warp; else a row a block
};

// What the host must know of a build; the cubin holds one as `rows_build`.
struct Build {
  int held;   // vectors of 16 bytes that a thread holds
  int dtype;  // by value of the axis
};

}  // namespace tilekiln::cuda::norm
