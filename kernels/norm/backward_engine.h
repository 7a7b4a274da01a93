// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of the norms' derivatives: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::norm {

// One call, after every check. Strides are in elements; a row is contiguous.
struct Backward {
  static constexpr bool launches_kernels = true;
  const void *dy, *x, *gamma;
  const float *mean, *inverse;  // of rows: the mean (layernorm2d); 1 / rms or 1 / standard deviation
  void *dx, *dgamma, *dbeta;
  long long dy_row, x_row, dx_row, rows;
  int columns, dtype;  // by value of the axis dtype
  // dgamma and dbeta are summed over parts of part_rows rows (of kernels: every parts-th row), then over these parts, each sum in one order: their bits do not
  // depend on threads. sums: (parts, 2, columns), dgamma before dbeta.
  float* sums;
  long long part_rows, parts;
};

// part[dtype]: dx of the rows of one part, and its sums. join[dtype]: dgamma and dbeta of the columns [first, last).
struct BackwardEngine {
  void (*part[3])(const Backward&, long long part);
  void (*join[3])(const Backward&, int first, int last);
};

}  // namespace tilekiln::norm
