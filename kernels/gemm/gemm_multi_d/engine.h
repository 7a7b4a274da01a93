// SPDX-License-Identifier: MIT
// A product of combined matrices between the host side and gemm's engines: plain data, no ISA, no std header, no inline function.
#pragma once
#include "kernels/gemm/engine.h"

namespace tilekiln::matrix {

// A side of a product that is one matrix with another: to[line][i] = from[line][i] op with[line][i], rounded to their dtype. `to` has its
// lines one after the other. Steps are in elements, 0 along a length of 1.
struct Side {
  const void *from, *with;  // with null: from is multiplied as it lies
  i64 lines, length, from_line, from_step, with_line, with_step;
  bool multiply;
};
struct MultiD {
  static constexpr bool launches_kernels = true;
  Problem product;  // a and b of the sides that are combined are absent
  Side a, b;        // of the product
};

}  // namespace tilekiln::matrix
