// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engine of moe_sorting: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::moe {

// One call, after every check. Strides are in elements; what is absent is null, or 0.
struct MoeSorting {
  static constexpr bool launches_kernels = true;
  const int *topk_ids, *expert_mask, *local_tokens;
  const float* topk_weights;
  int *sorted_token_ids, *sorted_expert_ids, *total_tokens_post_pad;
  float* sorted_weights;
  char* out;
  long long ids_row, weights_row, out_row, out_bytes;  // of out in bytes
  int tokens, topk, experts, unit, skip_empty;
  int room;  // elements of sorted_token_ids: units that would end past it are left out, and counted
};

// sort: everything but out; scratch holds a number an expert. zero: rows [first, last) of out.
struct MoeSortingEngine {
  void (*sort)(const MoeSorting&, int* scratch);
  void (*zero)(const MoeSorting&, long long first, long long last);
};

}  // namespace tilekiln::moe
