// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of rotary: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::norm {

// One call, after every check. Strides are in elements, of sequences, tokens and heads; a head is contiguous. What is absent is null.
struct Rotary {
  static constexpr bool launches_kernels = true;
  const void *x, *cos, *sin, *positions;
  const int* axes;  // of pairs: the axis whose position turns them
  void* y;          // may be x
  long long x_batch, x_token, x_head, y_batch, y_token, y_head, cos_row, sin_row, positions_row, positions_axis;
  long long rows, tokens, start, table_rows;  // rows: tokens of all sequences; tokens: of one
  int heads, columns, half;                   // half: pairs that are turned
  int dtype, tables;                          // by value of the axes
  int position_bytes;                         // 4 or 8
  int axis_count;                             // of positions, with axes
  bool interleaved, conjugate;
};

// rows[dtype] turns the rows [first, last).
struct RotaryEngine { void (*rows[3])(const Rotary&, long long first, long long last); };

}  // namespace tilekiln::norm
