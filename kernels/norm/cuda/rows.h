// SPDX-License-Identifier: MIT
// A row in the registers of a warp or of a block, in vectors of 16 bytes; what does not fit is read again for each
// pass.
//
// With warps of their own, four rows share a block of 128 threads and meet no barrier; else a block has one row.
#pragma once

#include "kernels/backends/cuda/vectors.h"
#include "kernels/norm/cuda/params.h"

namespace tilekiln::cuda::norm {

#if !defined(__HIP__) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)
#define TILEKILN_CLUSTERS 1
#define TILEKILN_CLUSTER_KERNEL \
  extern "C" __global__ void __cluster_dims__(norm::kCluster, 1, 1) __launch_bounds__(norm::kClusterThreads, 2)
#else
#define TILEKILN_CLUSTERS 0
#endif

constexpr int kHeld = HELD;

TILEKILN_DEVICE int bytes_of(int elements) { return elements * int(sizeof(Element)); }

// The threads that share rows row, row + step, ..: a warp, the block, or the blocks of a cluster.
struct Team {
  bool warp;
  int lane, lanes;
  long long row, step;
  bool cluster = false;

  __device__ __forceinline__ int warps() const { return cluster ? kClusterWarps : blockDim.x / 32; }
  __device__ __forceinline__ bool has(int lanes) const { return cluster || lanes < int(blockDim.x / 32); }
};
TILEKILN_DEVICE Team team_of(bool warps) {
  const int count = blockDim.x / 32;
  if (warps)
    return {true, int(threadIdx.x & 31), 32, (long long)blockIdx.x * count + threadIdx.x / 32,
            (long long)gridDim.x * count};
  return {false, int(threadIdx.x), int(blockDim.x), blockIdx.x, gridDim.x};
}

#if TILEKILN_CLUSTERS
// Begins the team of a cluster, whose blocks have begun to come.
TILEKILN_DEVICE Team begin_cluster() {
  cluster_arrive_relaxed();
  return {
      false, cluster_rank() * kClusterThreads + int(threadIdx.x), kCluster * kClusterThreads, blockIdx.x / kCluster, 0,
      true};
}
#endif

// `mine`, the same in all lanes of a warp, goes to shared[.] of the warp in every block of the team, and all meet.
template <class Value> TILEKILN_DEVICE void tell([[maybe_unused]] const Team& team, Value* shared, Value mine) {
  const int lane = threadIdx.x & 31;
#if TILEKILN_CLUSTERS
  if (team.cluster) {
    Value* const own = shared + cluster_rank() * (kClusterWarps / kCluster) + threadIdx.x / 32;
    if (lane < kCluster) cluster_store(shared_address(own), lane, mine);
    return;
  }
#endif
  if (lane == 0) shared[threadIdx.x / 32] = mine;
}
TILEKILN_DEVICE void meet([[maybe_unused]] const Team& team) {
#if TILEKILN_CLUSTERS
  if (team.cluster) {
    __syncthreads();  // one warp releases what all of its block have told
    threadIdx.x < 32 ? cluster_arrive() : cluster_arrive_relaxed();
    return cluster_wait();
  }
#endif
  __syncthreads();
}
// The values that the warps of a team told, combined in one order.
template <class Value, class Combine> TILEKILN_DEVICE Value told(const Team& team, const Value* shared,
                                                                 Combine&& combine) {
  const int at = threadIdx.x & 31 & (team.warps() - 1);  // warps are a power of two
  Value v = shared[at];
  if (team.cluster) v = combine(v, shared[at + 32]);
#pragma unroll
  for (int i = 16; i > 0; i /= 2) {
    if (team.has(i)) v = combine(v, __shfl_xor_sync(~0u, v, i));
  }
  return v;
}

// The values of all threads of a team combined in one order, in every thread. `shared`: kClusterWarps words that no
// other call of a row uses.
template <class Value, class Combine> TILEKILN_DEVICE Value joined(const Team& team, Value v, Value* shared,
                                                                   Combine&& combine) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v = combine(v, __shfl_xor_sync(~0u, v, i));
  if (team.warp) return v;
  tell(team, shared, v), meet(team);
  return told(team, shared, combine);
}
// Two of them at once.
template <class Combine, class Other> TILEKILN_DEVICE void join_both(const Team& team, float& v, float& w,
                                                                     float (&shared)[2][kClusterWarps],
                                                                     Combine&& combine, Other&& other) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v = combine(v, __shfl_xor_sync(~0u, v, i)), w = other(w, __shfl_xor_sync(~0u, w, i));
  if (team.warp) return;
  tell(team, shared[0], v), tell(team, shared[1], w), meet(team);
  v = told(team, shared[0], combine), w = told(team, shared[1], other);
}
TILEKILN_DEVICE float sum_of(const Team& team, float v, float* shared) {
  return joined(team, v, shared, [](float a, float b) { return a + b; });
}

// The dialect of rows, of what follows here, in whole.h, in staged.h and in the kernels: `pass(f)` calls f(vector,
// column, left) with every vector of a thread, `left` elements of the row from its column on; where kPartly is false
// there are kWide of them, or none: the vector is zeros then. `put(y, f)`, the last pass: the row y becomes f(vector).

// A row as it may be: `first(j)` makes the vector of column j, once; `again(j, passed)` makes it anew, of those that no
// register holds, in a first pass or later.
template <int kCount, int kAtOnce, class Again> struct Held {
  static constexpr bool kPartly = true;
  uint4 vector[kCount];
  int columns;
  bool wide, passed;
  const Team& team;
  Again again;

  template <class F> __device__ __forceinline__ void pass(F&& f) {
    const int step = team.lanes * kWide;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int j = team.lane * kWide + i * step;
      if (j < columns) f(vector[i], j, columns - j);
    }
    for (int first = team.lane * kWide + kCount * step; first < columns; first += kAtOnce * step) {
      uint4 rest[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * step < columns) rest[i] = again(first + i * step, passed);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int j = first + i * step;
        if (j < columns) f(rest[i], j, columns - j);
      }
    }
    passed = true;
  }
  template <class F> __device__ __forceinline__ void put(Element* y, F&& f) {
    pass([&](uint4 vector, int j, int left) { store_vector(y + j, f(vector), bytes_of(left), wide); });
  }
};
// `kCount` vectors have registers; of those that have none `kAtOnce` are read before the first of them is used.
template <int kCount, int kAtOnce = 1, class First, class Again>
TILEKILN_DEVICE Held<kCount, kAtOnce, Again> held(const Team& team, int columns, bool wide, First&& first,
                                                  Again&& again) {
  Held<kCount, kAtOnce, Again> made = {{}, columns, wide, false, team, again};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int j = (team.lane + i * team.lanes) * kWide;
    if (j < columns) made.vector[i] = first(j);
  }
  return made;
}

}  // namespace tilekiln::cuda::norm
