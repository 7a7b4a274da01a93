// SPDX-License-Identifier: MIT
// Kernels of a mixture of experts beside its products, of every build: the rows of each expert, their gathering, the
// sums.
#pragma once

#include "kernels/moe/fused_moe/cuda/lists.h"

namespace tilekiln::cuda::moe {

extern "C" __global__ void __launch_bounds__(kListThreads) moe_lists(const __grid_constant__ Lists p) {
  auto& s = shared_memory<ListMemory>();
  let_next_launch_begin();
  wait_for_launch_before();
  if (p.counts == nullptr)
    make_lists(p, s.counts, s.words);
  else
    make_lists(p, p.counts, s.words);
}
extern "C" __global__ void __launch_bounds__(kSumThreads) moe_gather(const __grid_constant__ Gather p) {
  let_next_launch_begin();
  wait_for_launch_before();
  const int tiles = __ldcg(p.tile_count), rows = tiles > 0 ? __ldcg(&p.tiles[tiles - 1].end) : 0;
  gather_rows(p, rows, blockIdx.x, gridDim.x);
}
extern "C" __global__ void __launch_bounds__(kSumThreads) moe_sums(const __grid_constant__ Sums p) {
  __shared__ int rows[kSumThreads];
  __shared__ float factors[kSumThreads];
  let_next_launch_begin();
  wait_for_launch_before();
  add_up(p, rows, factors);
}

}  // namespace tilekiln::cuda::moe
