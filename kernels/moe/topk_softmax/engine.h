// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of topk_softmax: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::moe {

// One call, after every check. Strides are in elements; a row is contiguous.
struct TopkSoftmax {
  static constexpr bool launches_kernels = true;
  const void* x;
  float* weights;
  int* indices;
  long long x_row, weights_row, indices_row, rows;
  int experts, topk, dtype, renormalise;
};

// rows[dtype] computes the rows [first, last); scratch holds 3 numbers an expert, in 64 at a time.
struct TopkSoftmaxEngine { void (*rows[3])(const TopkSoftmax&, long long first, long long last, float* scratch); };

}  // namespace tilekiln::moe
