// The border between the host side and the CPU engines of the norms: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::norm {

// One call, after every check. Strides are in elements; a row is contiguous. What is absent is null, or 0.
struct Problem {
  const void *x, *residual, *gamma, *beta;
  void *y, *residual_out;  // y may be x, residual_out may be residual
  float *mean, *inverse;   // of rows: the mean; 1 / rms or 1 / standard deviation
  long long x_row, residual_row, y_row, residual_out_row;
  long long rows;
  int columns, dtype;  // by value of the axis dtype
  int rounding;        // of rmsnorm2d, by value of the axis
  float epsilon;
};

// rows[dtype] computes the rows [first, last).
struct Engine { void (*rows[3])(const Problem&, long long first, long long last); };

}  // namespace tilekiln::norm
