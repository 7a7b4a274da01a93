// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of softmax: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::norm {

// One call, after every check. Strides are in elements; a row is contiguous. y may be x.
struct SoftmaxProblem {
  static constexpr bool launches_kernels = true;
  const void* x;
  void* y;
  long long x_row, y_row;
  long long rows;
  int columns, dtype;  // by value of the axis dtype
  // Flags of norm::Problem (kernels/norm/engine.h).
  bool streaming, fetch_ahead;
};

// rows[dtype] computes the rows [first, last).
struct SoftmaxEngine { void (*rows[3])(const SoftmaxProblem&, long long first, long long last); };

}  // namespace tilekiln::norm
