// The border between the host side and the CPU engines of rmsnorm2d: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::norm {

// One call, after every check. Strides are in elements; a row is contiguous. Null: residual, residual_out, inv_rms that are absent.
struct RmsProblem {
  const void *x, *gamma, *residual;
  void *y, *residual_out;  // y may be x, residual_out may be residual
  float* inv_rms;
  long long x_row, residual_row, y_row, residual_out_row;
  long long rows;
  int columns, dtype;  // by value of the axis dtype
  float epsilon;
};

// rows[dtype] computes the rows [first, last).
struct RmsEngine { void (*rows[3])(const RmsProblem&, long long first, long long last); };

}  // namespace tilekiln::norm
