// SPDX-License-Identifier: MIT
// Boxes of shared memory through which a warp stores its accumulators to global memory by whole lines of 128 bytes.
//
// Invariants: a box has 16 rows of 128 bytes, begins at a multiple of 1,024 and is swizzled as SharedTile's rows are. A
// warp uses its kBoxes boxes in turn; with two of them the fence of the next box covers the reads of this one, a single
// one is fenced behind its reads. Lines are .5 to 3 % of a product of 4096 faster than stores of 64 bytes by lane
// quads, TMA stores of the boxes 1 to 3 % slower (H100).
#pragma once

#include "kernels/backends/cuda/tile/shared_tile.h"

namespace tilekiln::cuda {

template <int kBoxes> struct StoreBoxes {
  static constexpr int kRows = 16, kBytes = kRows * 128;
  uint32_t first;  // shared address
  int lane;

  __device__ __forceinline__ uint32_t box(int i) const { return first + i % kBoxes * kBytes; }
  // Fills a box with the lane's 32 accumulators of 64 columns, rounded to the build's element.
  __device__ __forceinline__ void fill(uint32_t box, const float* v) const {
    const uint32_t mine = box + swizzle128(lane & 15, lane >> 4);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* const x = v + 8 * i;
      store_matrices(mine ^ i << 5, {pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])});
    }
  }
  // Fills a box with the lane's 16 accumulators of 32 columns, as fp32.
  __device__ __forceinline__ void fill_fp32(uint32_t box, const float* v) const {
    const uint32_t mine = box + swizzle128(lane >> 2, lane >> 1 & 1) + (lane & 1) * 8;
#pragma unroll
    for (int d = 0; d < 4; ++d) {
#pragma unroll
      for (int h = 0; h < 2; ++h)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"((mine ^ d << 5) + h * 8 * 128), "f"(v[d * 4 + h * 2]),
                     "f"(v[d * 4 + h * 2 + 1])
                     : "memory");
    }
  }
  // Stores a filled box to `out`, the address of its first row; rows are `row_bytes` apart and begin at multiples of 16
  // bytes. kRagged: the first `rows` of them, at most 16.
  template <bool kRagged = false>
  __device__ __forceinline__ void send(uint32_t box, char* out, int64_t row_bytes, int rows = kRows) const {
    __syncwarp();
    char* const to = out + (lane >> 3) * row_bytes + (lane & 7) * 16;
    uint4 line[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(line[i].x), "=r"(line[i].y), "=r"(line[i].z), "=r"(line[i].w)
                   : "r"(box + swizzle128(i * 4 + (lane >> 3), lane & 7))
                   : "memory");
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kRagged)
        store_if(i * 4 + (lane >> 3) < rows, to + 4 * i * row_bytes, line[i]);
      else
        *reinterpret_cast<uint4*>(to + 4 * i * row_bytes) = line[i];
    }
    if (kBoxes == 1 || kRagged) __syncwarp();
  }
};

}  // namespace tilekiln::cuda
