// SPDX-License-Identifier: MIT
// Up to kRows rows of a product of few rows in shared memory, normalised on their way if there is a norm.
#pragma once

#include "kernels/backends/cuda/ptx.h"

namespace tilekiln::cuda::gemm {

template <int kWarps, int kRows> struct SharedRows {
  const uint16_t* from;
  int64_t line;          // elements from row to row
  int m, k, pieces;      // rows, numbers of one, and pieces of 16 bytes with those that are 0 behind them
  const uint16_t* norm;  // factors of a norm, null: none
  float epsilon;
  bool rounds;  // rows, before norm multiplies them
  int warp, lane;
  uint32_t at;
  int row_bytes;  // 64 past a multiple of 128, so that two rows lie in different banks

  // part: kWarps numbers a row. As many loads as there are rows, or four of one, are on their way at once.
  __device__ __forceinline__ void load(float* part) const {
    const uint4 gamma = load_vector_if(norm != nullptr && int(threadIdx.x) * 8 < k, norm + threadIdx.x * 8);
    float sum[kRows] = {};
    if (m == 1)
      load_pieces<1, 4>(sum);
    else
      load_pieces<kRows, 1>(sum);
    if (norm != nullptr) {
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        if (row >= m) break;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) sum[row] += __shfl_xor_sync(~0u, sum[row], step);
        if (lane == 0) part[row * kWarps + warp] = sum[row];
      }
    }
    __syncthreads();
    if (norm != nullptr) normalise(part, gamma);
  }
  template <int kOfThem, int kAtOnce> __device__ __forceinline__ void load_pieces(float (&sum)[kRows]) const {
    for (int first = threadIdx.x; first < pieces; first += kAtOnce * 32 * kWarps) {
      uint4 v[kOfThem][kAtOnce];
#pragma unroll
      for (int row = 0; row < kOfThem; ++row)
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int i = first + j * 32 * kWarps;
          v[row][j] = load_vector_if(row < m && i * 8 < k, from + row * line + i * 8);
        }
#pragma unroll
      for (int row = 0; row < kOfThem; ++row)
#pragma unroll
        for (int j = 0; j < kAtOnce; ++j) {
          const int i = first + j * 32 * kWarps;
          if (row >= m || i >= pieces) continue;
          store_shared(at + row * row_bytes + i * 16, v[row][j]);
          if (norm != nullptr) add_squares(sum[row], v[row][j]);
        }
    }
  }
  static __device__ __forceinline__ void add_squares(float& sum, const uint4& v) {
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float low, high;
      unpack(word[i], low, high);
      sum = fmaf(low, low, sum), sum = fmaf(high, high, sum);
    }
  }
  // x / sqrt(mean(x^2) + epsilon) norm, as rmsnorm2d rounds it, of the pieces that this thread has stored; gamma:
  // norm's of the first.
  __device__ __forceinline__ void normalise(const float* part, uint4 gamma) const {
    static_assert(kRows == 8 && kWarps == 8, "four lanes add up a row");
    float sum = lane / 4 < m ? part[lane * 2] + part[lane * 2 + 1] : 0.f;
    sum += __shfl_xor_sync(~0u, sum, 1), sum += __shfl_xor_sync(~0u, sum, 2);
    const float of_lane = 1.f / sqrtf(sum / float(k) + epsilon);
    for (int first = 0; first * 8 < k; first += 32 * kWarps) {
      const int i = first + threadIdx.x;
      if (first > 0) gamma = load_vector_if(i * 8 < k, norm + i * 8);
      const uint32_t factor[4] = {gamma.x, gamma.y, gamma.z, gamma.w};
      for (int row = 0; row < m; ++row) {
        const float root = __shfl_sync(~0u, of_lane, row * 4);
        if (i * 8 >= k) continue;
        const uint32_t place = at + row * row_bytes + i * 16;
        const uint4 v = load_shared(place);
        uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float low, high, by_low, by_high;
          unpack(word[j], low, high), unpack(factor[j], by_low, by_high);
          low *= root, high *= root;
          if (rounds) unpack(pack(low, high), low, high);
          word[j] = pack(low * by_low, high * by_high);
        }
        store_shared(place, make_uint4(word[0], word[1], word[2], word[3]));
      }
    }
    __syncthreads();
  }
};

}  // namespace tilekiln::cuda::gemm
