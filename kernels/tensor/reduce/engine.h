// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of reduce: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::tensor {

enum class Reduction : int { sum, mean, max, min };  // by value of the axis

constexpr int kKept = 7, kReduced = 7;  // of the 8 dimensions one lies along the lanes

// y[kept] = scale * the sum of x[kept][reduced], or their maximum or minimum. Steps are in elements. Lanes run along one dimension in
// which x is contiguous where there is one: the last that is reduced (rows), or one that is kept (columns).
struct Reduce {
  static constexpr bool launches_kernels = true;
  const void* x;
  void* y;
  long long kept[kKept], kept_x[kKept], kept_y[kKept];  // the rest are 1 long
  long long reduced[kReduced], reduced_x[kReduced];     // but for the lanes' own
  long long length, step;                               // of rows: the lanes' own; of columns: of those of x
  long long column_y;                                   // of columns: the step in y
  int column_block;                                     // of columns: how many a unit takes, at most kColumnBytes of x
  long long outputs;                                    // of kept
  int way;                                              // ReduceWay
  int operation, dtype, y_dtype;                        // by value of the axes
  double scale;
};

enum class ReduceWay : int { rows, columns };

// rows[dtype] computes units [first, last): of rows an output each, of columns a block of those of an output, at most a page wide.
// Blocks of 1,024 columns of 1,024 rows are read at 54 GB/s, of 64 at 19: the rows of narrow ones begin in as many pages.
constexpr int kColumnBytes = 4096;
struct ReduceEngine { void (*rows[3])(const Reduce&, long long first, long long last); };

}  // namespace tilekiln::tensor
