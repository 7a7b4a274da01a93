// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of the moves: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::tensor {

constexpr int kOuter = 6;  // 8 dimensions, two of which are the plane's

// y[o][r][c] = x[o][r][c], of arrays whose dimensions were put in the order of y, longest step first, and joined where both step on.
// Steps are in elements.
struct Move {
  static constexpr bool launches_kernels = true;
  const void* x;
  void* y;
  long long outer[kOuter], outer_x[kOuter], outer_y[kOuter];  // the rest are 1 long
  long long rows, row_x, row_y;
  long long columns, column_x, column_y;
  // A unit is `planes` whole planes, or one block of one plane.
  long long planes, all_planes, row_block, column_block;
  int bytes;       // log2 of those of an element
  int way;         // Way
  bool streaming;  // rows of y go around the caches
};

enum class Way : int {
  rows,       // both contiguous along columns
  tiles,      // x contiguous along rows, y along columns
  scattered,  // anything
};

// run[bytes] does the units [first, last).
struct MoveEngine { void (*run[4])(const Move&, long long first, long long last); };

}  // namespace tilekiln::tensor
