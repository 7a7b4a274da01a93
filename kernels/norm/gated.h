// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of silu_and_mul, gelu_and_mul and their gradients: plain data, no ISA, no std
// header, no inline function.
#pragma once

namespace tilekiln::norm {

// One call, after every check. Strides are in elements; a row is contiguous. Forward: y, which may be gate. Backward: dgate and
// dup of dy; dgate may be gate, dup may be up.
struct Gated {
  static constexpr bool launches_kernels = true;
  const void *gate, *up, *dy;
  void *y, *dgate, *dup;
  long long gate_row, up_row, dy_row, y_row, dgate_row, dup_row;
  long long rows;
  int columns, dtype;  // by value of the axis dtype
  bool tanh;           // of gelu: by its tanh
};

// rows[dtype] computes the rows [first, last).
struct GatedEngine { void (*rows[3])(const Gated&, long long first, long long last); };

}  // namespace tilekiln::norm
