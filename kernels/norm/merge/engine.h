// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of merge: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::norm {

// One call, after every check. Strides are in elements; a row is contiguous. out may be out_a; lse may be null.
struct MergeProblem {
  static constexpr bool launches_kernels = true;
  const void *out_a, *out_b;
  const float *lse_a, *lse_b;
  void* out;
  float* lse;
  long long a_row, b_row, out_row;
  long long a_step, b_step, lse_step;  // between numbers of lse_a, lse_b and lse
  long long rows;
  int columns, dtype;  // by value of the axis dtype
};

// rows[dtype] computes the rows [first, last).
struct MergeEngine { void (*rows[3])(const MergeProblem&, long long first, long long last); };

}  // namespace tilekiln::norm
