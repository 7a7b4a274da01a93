// SPDX-License-Identifier: MIT
// A tile whose steps along k the CTAs of a cluster share: its sum, a part of the columns by each of them, through their
// shared memory. No memory of a launch, no counters; parts are added in the order of k: the same bits in every run.
#pragma once

#include <type_traits>

#include "kernels/backends/cuda/ptx.h"

namespace tilekiln::cuda {

// Behind it the CTA `rank` of a cluster of `splits` (2 or 4) has the whole sums of the rank-th of as many parts of c;
// the others of c are undefined. Called by the warpgroups with accumulators, of which this is `warpgroup`, while all
// other threads of the cluster call attend_cluster_sum. `mine`: the warp has rows of the product. `room`: shared memory
// for the accumulators of all warpgroups, which nobody else uses once its CTA is here.
template <class Sum, int N>
TILEKILN_DEVICE void add_over_cluster(Sum (&c)[N], void* room, int splits, int rank, int warpgroup, int thread,
                                      bool mine) {
  constexpr int kFours = N / 4;
  const int each = kFours / splits;
  const auto place = [&](int from, int i) { return (warpgroup * kFours + from * each + i) * 128 + thread; };
  async_shared_fence();
  __syncwarp();
  cluster_arrive(), cluster_wait();
  if (mine) {
#pragma unroll
    for (int i = 0; i < kFours; ++i) {
      const int to = i / each;
      float4 four;
      if constexpr (std::is_same_v<Sum, float>)
        four = {c[4 * i], c[4 * i + 1], c[4 * i + 2], c[4 * i + 3]};
      else
        four = {__int_as_float(c[4 * i]), __int_as_float(c[4 * i + 1]), __int_as_float(c[4 * i + 2]),
                __int_as_float(c[4 * i + 3])};
      cluster_store(shared_address(room) + place(rank, i - to * each) * 16, to, four);
    }
  }
  __syncwarp();
  cluster_arrive(), cluster_wait();
  if (!mine) return;
  using Four = std::conditional_t<std::is_same_v<Sum, float>, float4, int4>;
  const Four* const parts = static_cast<const Four*>(room);
#pragma unroll
  for (int i = 0; i < kFours; ++i) {
    if (i / each != rank) continue;
    Four sum = parts[place(0, i - rank * each)];
#pragma unroll 1
    for (int from = 1; from < splits; ++from) {
      const Four part = parts[place(from, i - rank * each)];
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    c[4 * i] = sum.x, c[4 * i + 1] = sum.y, c[4 * i + 2] = sum.z, c[4 * i + 3] = sum.w;
  }
}
TILEKILN_DEVICE void attend_cluster_sum() {
  __syncwarp();
  cluster_arrive(), cluster_wait();
  cluster_arrive(), cluster_wait();
}

}  // namespace tilekiln::cuda
