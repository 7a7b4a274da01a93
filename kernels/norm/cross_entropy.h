// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of cross_entropy and its gradient: plain data, no ISA, no std header, no inline
// function.
#pragma once

namespace tilekiln::norm {

// One call, after every check. Strides are in elements; a row is contiguous. What is absent is null.
struct CrossEntropy {
  static constexpr bool launches_kernels = true;
  const void *logits, *labels;
  const float *given_lse, *dloss;  // of rows; dloss: backward
  float *loss, *lse;               // of rows
  void* dlogits;                   // backward; may be logits
  long long logits_row, dlogits_row;
  long long rows;
  long long first_class, ignore_index;
  int columns, dtype;  // columns: classes that are here; by value of the axis dtype
  int label_bytes;     // 4 or 8
  float logit_scale, lse_square_scale;
  float off, on;  // label smoothing: of every class, and of the label beside that
};

// rows[dtype] computes the rows [first, last).
struct CrossEntropyEngine { void (*rows[3])(const CrossEntropy&, long long first, long long last); };

}  // namespace tilekiln::norm
