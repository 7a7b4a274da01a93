// SPDX-License-Identifier: MIT
// Rows as int8 by a factor each, for the products of panels.h.
#pragma once

#include "kernels/gemm/flatmm_quant/cuda/panel_params.h"
#include "kernels/norm/cuda/quantise.h"

namespace tilekiln::cuda::panels {

// Rows as int8, a block each in turn: their largest magnitude first.
TILEKILN_DEVICE void narrow_rows(const Narrow& p) {
  __shared__ unsigned tops[kNarrowThreads / 32];
  const int tiles = p.tiles == nullptr ? 0 : __ldcg(p.tile_count);
  const int rows = p.tiles == nullptr ? int(p.rows) : tiles > 0 ? __ldcg(&p.tiles[tiles - 1].end) : 0;
  const int all = p.tokens == nullptr ? rows : int(min(int64_t(rows) + kTileRows, p.rows));
  for (int row = blockIdx.x; row < all; row += gridDim.x) {
    if (row >= rows) {
      for (int column = threadIdx.x * 4; column < p.columns; column += kNarrowThreads * 4)
        *reinterpret_cast<uint32_t*>(p.to + row * p.to_row + column) = 0;
      continue;
    }
    const float* smooth = p.smooth;
    if (smooth != nullptr) {
      int tile = 0;  // of the row: the first that ends behind it
      for (int last = tiles - 1; tile < last;) {
        const int middle = (tile + last) / 2;
        if (p.tiles[middle].end > row)
          last = middle;
        else
          tile = middle + 1;
      }
      smooth += p.tiles[tile].expert * p.smooth_row;
    }
    const int64_t line = p.tokens == nullptr ? row : __ldcg(p.tokens + row);
    const auto load = [&](int column, float (&v)[4]) {
      if (p.fp32) {
        const float4 four =
            *reinterpret_cast<const float4*>(static_cast<const float*>(p.from) + row * p.from_row + column);
        v[0] = four.x, v[1] = four.y, v[2] = four.z, v[3] = four.w;
      } else {
        const uint16_t* const from = static_cast<const uint16_t*>(p.from) + line * p.from_row + column;
        if (reinterpret_cast<uintptr_t>(from) % 8 == 0) {
          const uint2 four = *reinterpret_cast<const uint2*>(from);
          unpack(four.x, v[0], v[1]), unpack(four.y, v[2], v[3]);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) v[i] = element(from[i]);
        }
      }
      if (smooth == nullptr) return;
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] *= smooth[column + i];
    };
    unsigned top = 0;  // the bits of the largest magnitude: those of NaN are above infinity's
    for (int column = threadIdx.x * 4; column < p.columns; column += kNarrowThreads * 4) {
      float v[4];
      load(column, v);
#pragma unroll
      for (int i = 0; i < 4; ++i) top = max(top, __float_as_uint(v[i]) & 0x7fffffffu);
    }
    top = __reduce_max_sync(~0u, top);
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < kNarrowThreads / 32; ++w) top = max(top, tops[w]);
    const norm::Scale of = norm::scale_of(__uint_as_float(top), false);
    if (threadIdx.x == 0) p.scale[row] = of.scale;
    for (int column = threadIdx.x * 4; column < p.columns; column += kNarrowThreads * 4) {
      float v[4];
      load(column, v);
      *reinterpret_cast<uint32_t*>(p.to + row * p.to_row + column) = of.some ? norm::quantised(v, of.by, false) : 0;
    }
    __syncthreads();
  }
}

}  // namespace tilekiln::cuda::panels

extern "C" __global__ void __launch_bounds__(tilekiln::cuda::panels::kNarrowThreads)
    panels_narrow(const __grid_constant__ tilekiln::cuda::Narrow p) {
  tilekiln::cuda::let_next_launch_begin();
  tilekiln::cuda::wait_for_launch_before();
  tilekiln::cuda::panels::narrow_rows(p);
}
