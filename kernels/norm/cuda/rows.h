// A row in the registers of a warp or of a block, in vectors of 16 bytes; what does not fit is read again for each pass.
//
// With warps of their own, four rows share a block of 128 threads and meet no barrier; else a block has one row.
#pragma once

#include "kernels/backends/cuda/vectors.h"
#include "kernels/norm/cuda/row.h"

namespace tilekiln::cuda::norm {

constexpr int kHeld = HELD;

// The threads that share rows row, row + step, ..: a warp, or the block.
struct Team {
  bool warp;
  int lane, lanes;
  long long row, step;
};
TILEKILN_DEVICE Team team_of(bool warps) {
  const int count = blockDim.x / 32;
  if (warps)
    return {true, int(threadIdx.x & 31), 32, (long long)blockIdx.x * count + threadIdx.x / 32,
            (long long)gridDim.x * count};
  return {false, int(threadIdx.x), int(blockDim.x), blockIdx.x, gridDim.x};
}

// The values of all threads of a team combined in one order, in every thread. `shared`: 32 words that no other call of a row uses.
template <class Value, class Combine> TILEKILN_DEVICE Value joined(const Team& team, Value v, Value* shared,
                                                                   Combine&& combine) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v = combine(v, __shfl_xor_sync(~0u, v, i));
  if (team.warp) return v;
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  v = shared[threadIdx.x & 31 & (blockDim.x / 32 - 1)];  // warps are a power of two
#pragma unroll
  for (int i = 16; i > 0; i /= 2) {
    if (i < int(blockDim.x / 32)) v = combine(v, __shfl_xor_sync(~0u, v, i));
  }
  return v;
}
// Two of them at once.
template <class Combine, class Other> TILEKILN_DEVICE void join_both(const Team& team, float& v, float& w,
                                                                     float (&shared)[2][32], Combine&& combine,
                                                                     Other&& other) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) v = combine(v, __shfl_xor_sync(~0u, v, i)), w = other(w, __shfl_xor_sync(~0u, w, i));
  if (team.warp) return;
  if ((threadIdx.x & 31) == 0) shared[0][threadIdx.x / 32] = v, shared[1][threadIdx.x / 32] = w;
  __syncthreads();
  const int at = threadIdx.x & 31 & (blockDim.x / 32 - 1);  // warps are a power of two
  v = shared[0][at], w = shared[1][at];
#pragma unroll
  for (int i = 16; i > 0; i /= 2) {
    if (i < int(blockDim.x / 32)) v = combine(v, __shfl_xor_sync(~0u, v, i)), w = other(w, __shfl_xor_sync(~0u, w, i));
  }
}
TILEKILN_DEVICE float sum_of(const Team& team, float v, float* shared) {
  return joined(team, v, shared, [](float a, float b) { return a + b; });
}

// A row's vectors: `first(j)` makes that of column j, once; `again(j)` makes it anew, of those that no register holds.
template <int kCount, int kAtOnce, class Again> struct Held {
  uint4 vector[kCount];
  int columns;
  const Team& team;
  Again again;

  // f(vector, column, bytes of the row from there on)
  template <class F> __device__ __forceinline__ void each(F&& f) {
    const int step = team.lanes * kWide;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int j = team.lane * kWide + i * step;
      if (j < columns) f(vector[i], j, (columns - j) * int(sizeof(Element)));
    }
    for (int first = team.lane * kWide + kCount * step; first < columns; first += kAtOnce * step) {
      uint4 rest[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i * step < columns) rest[i] = again(first + i * step);
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int j = first + i * step;
        if (j < columns) f(rest[i], j, (columns - j) * int(sizeof(Element)));
      }
    }
  }
};
// `kCount` vectors have registers; of those that have none `kAtOnce` are read before the first of them is used.
template <int kCount, int kAtOnce = 1, class First, class Again>
TILEKILN_DEVICE Held<kCount, kAtOnce, Again> held(const Team& team, int columns, First&& first, Again&& again) {
  Held<kCount, kAtOnce, Again> made = {{}, columns, team, again};
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const int j = (team.lane + i * team.lanes) * kWide;
    if (j < columns) made.vector[i] = first(j);
  }
  return made;
}

}  // namespace tilekiln::cuda::norm
