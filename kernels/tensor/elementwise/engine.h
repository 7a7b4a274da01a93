// SPDX-License-Identifier: MIT
// The border between the host side and the engines of elementwise: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::tensor {

constexpr int kOperands = 8, kAround = 6;  // of 8 dimensions two are the plane's

// y = f(x[0], ..), of arrays whose dimensions were put in the order of y, longest step first, and joined where all step on. A step is 0
// along what is broadcast. Steps are in elements.
struct Elementwise {
  const void* x[kOperands];
  void* y;
  long long around[kAround], around_x[kOperands][kAround], around_y[kAround];  // the rest are 1 long
  long long rows, row_x[kOperands], row_y;
  long long columns, column_x[kOperands], column_y;
  long long row_block, column_block, planes;  // a unit is a block of a plane
  int operands, operation, dtype;             // operation: its number in operations.inc
  bool streaming;                             // rows of y are whole lines and go around the caches
};

// rows[dtype] computes units [first, last).
struct ElementwiseEngine { void (*rows[3])(const Elementwise&, long long first, long long last); };

}  // namespace tilekiln::tensor
