// SPDX-License-Identifier: MIT
// A call of fused_moe as plain data, for the host side and engines: no ISA, no std header.
#pragma once
#include "kernels/gemm/engine.h"

namespace tilekiln::moe {

using matrix::i64;

// Products of the first expert, both, but for a, out, m and what belongs to rows; in bytes what must be added for another.
struct Experts {
  static constexpr bool launches_kernels = true;
  matrix::Grouped gate, down;
  i64 gate_step, up_offset, down_step;             // of b
  i64 gate_scale_step, up_scale, down_scale_step;  // of b_scale
  const char* x;
  char* out;
  const int *topk_ids, *expert_mask, *local_tokens;
  const float *gate_bias, *down_bias;                            // null: without; up's stands gate.n further
  i64 gate_bias_row, down_bias_row;                              // elements from expert to expert
  const float *topk_weights, *smooth_scale, *down_smooth_scale;  // null: without
  i64 x_row, out_row;                                            // bytes
  i64 ids_row, weights_row, smooth_row, down_smooth_row;         // elements
  matrix::Dtype dtype;
  bool gated, swiglu;
  bool quantised;  // weights are
  bool int8_rows;  // so are rows, before each product
  bool fp8;        // weights and rows are e4m3 with factors of blocks
  int tokens, topk, experts, all_experts, hidden, inter;
};

}  // namespace tilekiln::moe
