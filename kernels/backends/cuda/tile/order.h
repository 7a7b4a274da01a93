// SPDX-License-Identifier: MIT
// The order in which consumer warpgroups issue their products, so that the softmax of one lies under those of another.
//
// Invariants: named barriers kFirst to kFirst + kCount - 1 are the order's own. Every warpgroup waits and then arrives
// as often as the others do; one that has no work at a step does both all the same.
#pragma once

#include "kernels/backends/cuda/ptx.h"

namespace tilekiln::cuda {

template <int kCount, int kFirst = 1> struct WarpgroupOrder {
  int mine, next;
  explicit __device__ __forceinline__ WarpgroupOrder(int warpgroup)
      : mine(kFirst + warpgroup), next(kFirst + (warpgroup + 1 < kCount ? warpgroup + 1 : 0)) {
    if (kCount > 1 && warpgroup == 0) named_arrive(kFirst, 256);
  }
  __device__ __forceinline__ void wait() const {
    if (kCount > 1) named_sync(mine, 256);
  }
  __device__ __forceinline__ void arrive() const {
    if (kCount > 1) named_arrive(next, 256);
  }
};

}  // namespace tilekiln::cuda
