// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of the norms: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::norm {

// One call, after every check. Strides are in elements; a row is contiguous. What is absent is null, or 0.
struct Problem {
  static constexpr bool launches_kernels = true;
  const void *x, *residual, *gamma, *beta;
  void *y, *residual_out;  // y may be x, residual_out may be residual
  float *mean, *inverse;   // of rows: the mean; 1 / rms or 1 / standard deviation
  long long x_row, residual_row, y_row, residual_out_row;
  long long rows;
  int columns, dtype;  // by value of the axis dtype
  int rounding;        // of rmsnorm2d, by value of the axis
  float epsilon;
  bool
      streaming;  // rows come from memory, and y, whose rows are whole cache lines and of whole twos, goes around the caches
  bool fetch_ahead;  // rows come from beyond L2: the next are on their way while others are written
  // Type of rows that are quantised: y is int8 or fp8, by value of the axis y_dtype.
  int y_dtype;
  bool y_streaming;           // y of int8 goes around the caches, where its rows are whole
  bool sum_streaming;         // so does residual_out, in whole lines
  float* y_scale;             // of rows
  const float* smooth_scale;  // of columns; of (experts, columns) with topk_ids
  void* unquantised;
  long long unquantised_row;
  // moe_smoothquant: row m is of token m % tokens, for its expert topk_ids[token][m / tokens]. Its rows of y may have gaps
  // between the first token of one choice and the next.
  const int* topk_ids;
  long long topk_ids_row, y_choice, y_scale_choice, smooth_scale_row;
  int tokens, experts;
};

// Computes the rows [first, last).
using Rows = void(const Problem&, long long first, long long last);

struct Engine { Rows* rows[3]; };  // by dtype

}  // namespace tilekiln::norm
