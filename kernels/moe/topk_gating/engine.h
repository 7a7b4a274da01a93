// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of topk_gating: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::moe {

// Names of the axis in kernels/moe/topk_gating/family.yaml.
enum class Score : int { softmax, sigmoid, sqrtsoftplus };

// One call, after every check. Strides are in elements; a row is contiguous.
struct TopkGating {
  static constexpr bool launches_kernels = true;
  const void* x;
  const float* bias;  // null: without
  float* weights;
  int* indices;
  long long x_row, weights_row, indices_row, rows;
  int experts, topk, shared, groups, topk_groups, dtype;
  Score score;
  bool group_of_two, renormalise;
  float scaling, shared_weight;
};

// rows[dtype] computes the rows [first, last); scratch holds 4 numbers an expert, in 64 at a time.
struct TopkGatingEngine { void (*rows[3])(const TopkGating&, long long first, long long last, float* scratch); };

}  // namespace tilekiln::moe
