// SPDX-License-Identifier: MIT
// Persistent CTAs over the tiles of a grouped GEMM, whose groups of rows only the device knows.
//
// Invariants: a worker is a CTA, or a cluster of two with the same rows and neighbouring columns. All warps of a worker
// walk the same tiles in the same order, a group after the other, and inside a group rows of tiles first: its columns
// of b stay in L2 for all of them. Rows lie in [0, rows), whatever the starts say.
#pragma once

#include "kernels/backends/cuda/ptx.h"
#include "kernels/gemm/grouped_gemm/cuda/params.h"

namespace tilekiln::cuda::gemm {

template <int kRows, int kColumns> struct GroupScheduler {
  const GroupParams& p;
  int64_t tile, before = 0;  // before: tiles of the groups before `group`; of starts that overlap there may be many
  int group = 0;
  int row = 0, end = 0, n = 0;  // of the current tile: its first row, the end of its group, its first column
  explicit __device__ __forceinline__ GroupScheduler(const GroupParams& p) : p(p), tile(blockIdx.x >> peers()) {}

  __device__ __forceinline__ int peers() const { return p.product.grid.pairs; }
  __device__ __forceinline__ int ctas() const { return 1 << peers(); }
  __device__ __forceinline__ int rank() const { return blockIdx.x & peers(); }
  __device__ __forceinline__ int start(int group) const { return max(0, __ldg(p.starts + group)); }

  __device__ __forceinline__ bool next() {
    const int across = kColumns << peers(), tiles_n = (p.product.n - 1) / across + 1;
    for (; group < p.groups; ++group) {
      const int begin = start(group);
      end = min(start(group + 1), p.product.m);
      if (p.counts != nullptr) end = min(int64_t(end), int64_t(begin) + max(0, __ldg(p.counts + group)));
      const int rows = max(end - begin, 0), tiles_m = rows / kRows + (rows % kRows > 0);
      const int64_t tiles = int64_t(tiles_m) * tiles_n;
      if (tile < before + tiles) {
        const int in = int(tile - before), column = in / tiles_m;
        n = column * across + rank() * kColumns;
        row = begin + (in - column * tiles_m) * kRows;
        tile += gridDim.x >> peers();
        return true;
      }
      before += tiles;
    }
    return false;
  }
};

}  // namespace tilekiln::cuda::gemm
