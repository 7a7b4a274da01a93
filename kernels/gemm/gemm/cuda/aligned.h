// SPDX-License-Identifier: MIT
// The epilogue of Hopper's tiles that lie inside out, with everything aligned: passes over all sums at once, whose
// loads are in flight together, and stores of whole lines of 128 bytes (tile/epilogue.h). Activations but relu go by 32
// sums, through one copy of their code: sums that go back into their registers would spill (0.85 in place of 0.89 of
// cuBLAS's speed with silu at 4k).
#pragma once

#include "kernels/backends/cuda/tile/epilogue.h"
#include "kernels/gemm/gemm/cuda/epilogue.h"

namespace tilekiln::cuda::gemm {

// Column d of 8 of a lane's sums, d < N / 4: f(first, second) of both of its rows.
template <int N, class Function> TILEKILN_DEVICE void each_column(float (&sum)[N], int d, Function&& f) {
#pragma unroll
  for (int h = 0; h < 2; ++h) f(h, sum[d * 4 + h * 2], sum[d * 4 + h * 2 + 1]);
}

// Has the bias of a tile's columns on its way to L1, 32 bytes a lane.
TILEKILN_DEVICE void prefetch_bias(const Params& p, int column, int columns, int lane) {
  const int mine = column + lane * 8;
  if (p.bias != nullptr && !(p.features & kBiasOfRows) && lane * 8 < columns && mine < p.n) prefetch_l1(p.bias + mine);
}

// `row` and row + 8, and columns from `column` on, lie in out, whose rows and those of all that is read are aligned.
template <class P, int N> TILEKILN_DEVICE void combine_aligned(const P& p, float (&sum)[N], int batch, int row,
                                                               int column, int lane) {
  const int mine = column + (lane & 3) * 2;
  if (p.alpha != 1 || p.row_scale != nullptr) {
    float factor[2] = {p.alpha, p.alpha};
    if (p.row_scale != nullptr) factor[0] *= p.row_scale[row], factor[1] *= p.row_scale[row + 8];
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] *= factor[i / 2 % 2];
  }
  if (p.column_scale != nullptr) {
#pragma unroll
    for (int d = 0; d < N / 4; ++d) {
      const float2 scale = *reinterpret_cast<const float2*>(p.column_scale + mine + d * 8);
      each_column(sum, d, [&](int, float& first, float& second) { first *= scale.x, second *= scale.y; });
    }
  }
  if (p.bias != nullptr && p.features & kBiasOfRows) {
    const float bias[2] = {p.bias[row], p.bias[row + 8]};
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += bias[i / 2 % 2];
  } else if (p.bias != nullptr) {
#pragma unroll
    for (int d = 0; d < N / 4; ++d) {
      const float2 bias = *reinterpret_cast<const float2*>(p.bias + mine + d * 8);
      each_column(sum, d, [&](int, float& first, float& second) { first += bias.x, second += bias.y; });
    }
  }
#pragma unroll 1
  for (int e = 0; e < 2; ++e) {
    const Extra& extra = p.extra[e];
    if (extra.data == nullptr) break;
    const int64_t at = batch * extra.batch + row * extra.row + mine;
    if (p.features & kOutFp32) {
      const float* const from = static_cast<const float*>(extra.data) + at;
#pragma unroll
      for (int d = 0; d < N / 4; ++d)
        each_column(sum, d, [&](int h, float& first, float& second) {
          const float2 x = *reinterpret_cast<const float2*>(from + h * 8 * extra.row + d * 8);
          join(extra, first, x.x), join(extra, second, x.y);
        });
    } else {
      const uint16_t* const from = static_cast<const uint16_t*>(extra.data) + at;
#pragma unroll
      for (int d = 0; d < N / 4; ++d)
        each_column(sum, d, [&](int h, float& first, float& second) {
          float2 x;
          unpack(*reinterpret_cast<const uint32_t*>(from + h * 8 * extra.row + d * 8), x.x, x.y);
          join(extra, first, x.x), join(extra, second, x.y);
        });
    }
  }
}

// The warp's rows from `row` on and columns from `column` on, through its boxes from `first` on.
template <bool kRagged, class P, int N, int kBoxes>
TILEKILN_DEVICE void store_aligned(const P& p, const StoreBoxes<kBoxes>& boxes, const float (&sum)[N], int batch,
                                   int row, int column, int first = 0) {
  const auto send = [&](uint32_t box, int size, int at) {
    char* const to = static_cast<char*>(p.out) + (batch * p.out_batch + row * p.out_row + at) * size;
    boxes.template send<kRagged>(box, to, p.out_row * size, p.m - row);
  };
  if (p.features & kOutFp32) {
#pragma unroll
    for (int i = 0; i < N / 16; ++i) {
      const uint32_t box = boxes.box(i);
      boxes.fill_fp32(box, sum + 16 * i);
      send(box, 4, column + 32 * i);
    }
  } else {
#pragma unroll
    for (int i = 0; i < N / 32; ++i) {
      const uint32_t box = boxes.box(first + i);
      boxes.fill(box, sum + 32 * i);
      send(box, 2, column + 64 * i);
    }
  }
}

// Sums of the warp's rows from `row` on and of columns from `column` on. kRagged: rows may end before the warp's do,
// where nothing is read by rows.
template <bool kRagged = false, class P, int N, int kBoxes>
TILEKILN_DEVICE void finish_aligned(const P& p, const StoreBoxes<kBoxes>& boxes, float (&sum)[N], int batch, int row,
                                    int column) {
  combine_aligned(p, sum, batch, row + boxes.lane / 4, column, boxes.lane);
  if (Activation(p.activation) == Activation::relu) each(sum, relu);
  if (Activation(p.activation) <= Activation::relu) return store_aligned<kRagged>(p, boxes, sum, batch, row, column);
  in_turns<32>(sum, [&](float (&v)[32], int at) {
    activate(p, v);
    store_aligned<kRagged>(p, boxes, v, batch, row, column + 64 * at, at);
  });
}

}  // namespace tilekiln::cuda::gemm
