// SPDX-License-Identifier: MIT
// A contraction between the host side and gemm's engines: plain data, no ISA, no std header, no inline function.
#pragma once
#include "kernels/gemm/engine.h"

namespace tilekiln::matrix {

constexpr int kRest = 14;  // dimensions beside those of the product, of a and b with 8 each

// Products over three dimensions, each of which has its stride 1 somewhere: one for each index of the rest, whose steps are bytes.
// Sums along k go on from product to product.
struct Contraction {
  Problem product;
  i64 count[kRest], a[kRest], b[kRest], out[kRest];  // the rest of the batch, of m and of n; 1 long where there is none
  i64 steps[kRest], a_step[kRest], b_step[kRest];    // the rest of k
  i64 products, sums;                                // of count, of steps
};

}  // namespace tilekiln::matrix
