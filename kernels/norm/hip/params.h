// SPDX-License-Identifier: MIT
// Parameters of HIP's kernels over rows of arrays: a checked problem, and how its rows may be read. What one code object is made for.
#pragma once

#include "kernels/norm/engine.h"
#include "kernels/norm/gated.h"

namespace tilekiln::hip::norm {

template <class Problem> struct Params {
  Problem problem;
  int wide;     // every row of every array begins at 16 bytes
  int threads;  // of a workgroup, which has a row at a time: a power of two times 64
  int blocks;
};

// Constants of a code object that the host must know; it holds one as `tilekiln_rows_build`.
struct Build {
  int held;   // vectors of 16 bytes that a thread holds
  int dtype;  // by value of the axis
};

}  // namespace tilekiln::hip::norm
