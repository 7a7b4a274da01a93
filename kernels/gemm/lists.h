// SPDX-License-Identifier: MIT
// Lists of matrix products that one call computes, for the host side.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/gemm/engine.h"
#include "kernels/runtime/status.h"

namespace tilekiln::matrix {

// Refuses what the kernel of few rows alone does.
[[nodiscard]] inline tilekiln_status refuse_more(const Problem& p) {
  if (p.more.norm == nullptr && p.more.up == nullptr) return TILEKILN_OK;
  return fail_argument(p.more.norm != nullptr ? "a_norm" : "b_up",
                       "was given for %d x %d by %d columns, must be null but for up to 8 rows, of 64 numbers or more "
                       "in multiples of 8, at addresses of 16 bytes, on a Hopper GPU: call %s",
                       p.m, p.k, p.n, p.more.norm != nullptr ? "rmsnorm2d before" : "silu_and_mul behind");
}

// `count` products of one size: the first, and how many bytes lie from one to the next. 0: they share it.
struct Batch {
  static constexpr bool launches_kernels = true;
  Problem first;
  i64 count;
  i64 a_step, b_step, out_step, c_step;
};

// A product that is quantised, by rows where static_scale is 0.
struct Quantised {
  static constexpr bool launches_kernels = true;
  Problem product;
  float* scale;
  float static_scale;
};

// Products of rows [starts[i], starts[i + 1]) of a and out, which `first` describes from row 0 on, and of c, with the i-th b and bias.
// Rows end at ends[i], where there are ends.
struct Groups {
  static constexpr bool launches_kernels = true;
  Problem first;
  std::vector<int32_t> starts, ends;
  const int *device_starts, *device_counts;      // where kernels read them; null: the host has, and no counts
  i64 a_row, out_row, c_row, b_step, bias_step;  // bytes
  i64 factors_step;                              // of b's blocks, in elements
};

// Groups for kernels, which read the groups + 1 starts themselves.
struct DeviceGroups {
  Problem first;               // m: all rows of a
  const int *starts, *counts;  // the second null: without
  i64 groups;
  i64 b_step, bias_step;  // bytes
  i64 factors_step;       // elements
};

// One of a list.
struct Listed {
  int m, n, k;
  const void *a, *b;
  void* out;
  const float* bias;
  i64 lda, ldb, out_row;
};

// Products whose sizes and places `problems` say; `first` has all else.
struct List {
  static constexpr bool launches_kernels = true;
  Problem first;
  std::vector<Listed> problems;
};

}  // namespace tilekiln::matrix
