// SPDX-License-Identifier: MIT
// The epilogue of a tile's sums: scales, bias and matrices; the activation; rounding and stores.
//
// `finish` takes 16 sums after each other and looks at every element's place: 2.5 us a tile where that of tiles inside
// out takes 0.5 (aligned.h, H100).
#pragma once

#include "kernels/backends/cuda/ptx.h"
#include "kernels/gemm/gemm/cuda/params.h"
#include "kernels/gemm/gemm/epilogue_steps.h"

namespace tilekiln::cuda::gemm {

// f(sums) as the epilogue takes them: those of int8 become fp32, or stay the bits that out takes (kOutSums).
template <class P, int N, class Function> TILEKILN_DEVICE void with_numbers(const P&, float (&sum)[N], Function&& f) {
  f(sum);
}
template <class P, int N, class Function>
TILEKILN_DEVICE void with_numbers(const P& p, const int (&sum)[N], Function&& f) {
  float to[N];
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = number_unless(p.features & kOutSums, sum[i]);
  f(to);
}
// Tells whether sums go out as they are: a factor of 1 would change the bits of those that are NaN as fp32.
template <class P> TILEKILN_DEVICE bool as_they_are(const P& p) {
#ifdef TILEKILN_INT8
  return p.features & kOutSums;
#else
  return false;
#endif
}

// The sums of 32 columns that a lane has: [dd][h][j] is of row h and column 8 dd + j.
using Sums = float[16];

// Two neighbours of a row of an extra matrix, or of numbers one a column; 0 beyond column n.
template <class P> TILEKILN_DEVICE float2 load_pair(const P& p, const Extra& from, int64_t at, int column) {
  if (p.features & kWideExtras && column + 1 < p.n) {
    if (p.features & kOutFp32) return *reinterpret_cast<const float2*>(static_cast<const float*>(from.data) + at);
    float2 two;
    unpack(*reinterpret_cast<const uint32_t*>(static_cast<const uint16_t*>(from.data) + at), two.x, two.y);
    return two;
  }
  const auto one = [&](int64_t place, bool there) {
    if (!there) return 0.f;
    return p.features & kOutFp32 ? static_cast<const float*>(from.data)[place]
                                 : element(static_cast<const uint16_t*>(from.data)[place]);
  };
  return {one(at, column < p.n), one(at + from.column, column + 1 < p.n)};
}
TILEKILN_DEVICE float2 load_numbers(const float* from, int column, int n) {
  return {column < n ? from[column] : 0.f, column + 1 < n ? from[column + 1] : 0.f};
}

// Rows `row` and row + 8; 32 columns from `column` on.
template <class P> TILEKILN_DEVICE void combine(const P& p, Sums& v, int batch, int row, int column, int lane) {
  const int mine = column + (lane & 3) * 2;
  float factor[2];
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    factor[h] = p.alpha;
    if (p.row_scale != nullptr && row + 8 * h < p.m) factor[h] *= p.row_scale[row + 8 * h];
  }
#pragma unroll
  for (int i = 0; i < 16; ++i) v[i] *= factor[i / 2 % 2];
  if (p.column_scale != nullptr) {
#pragma unroll
    for (int dd = 0; dd < 4; ++dd) {
      const float2 scale = load_numbers(p.column_scale, mine + dd * 8, p.n);
#pragma unroll
      for (int h = 0; h < 2; ++h) v[dd * 4 + h * 2] *= scale.x, v[dd * 4 + h * 2 + 1] *= scale.y;
    }
  }
  if (p.bias != nullptr && p.features & kBiasOfRows) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float bias = row + 8 * h < p.m ? p.bias[row + 8 * h] : 0.f;
#pragma unroll
      for (int dd = 0; dd < 4; ++dd) v[dd * 4 + h * 2] += bias, v[dd * 4 + h * 2 + 1] += bias;
    }
  } else if (p.bias != nullptr) {
#pragma unroll
    for (int dd = 0; dd < 4; ++dd) {
      const float2 bias = load_numbers(p.bias, mine + dd * 8, p.n);
#pragma unroll
      for (int h = 0; h < 2; ++h) v[dd * 4 + h * 2] += bias.x, v[dd * 4 + h * 2 + 1] += bias.y;
    }
  }
#pragma unroll 1
  for (int e = 0; e < 2; ++e) {
    const Extra& extra = p.extra[e];
    if (extra.data == nullptr) break;
    const int64_t start = batch * extra.batch;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (row + 8 * h >= p.m) continue;
      const int64_t at = start + (row + 8 * h) * extra.row;
#pragma unroll
      for (int dd = 0; dd < 4; ++dd) {
        const float2 x = load_pair(p, extra, at + (mine + dd * 8) * extra.column, mine + dd * 8);
        float &first = v[dd * 4 + h * 2], &second = v[dd * 4 + h * 2 + 1];
        join(extra, first, x.x), join(extra, second, x.y);
      }
    }
  }
}

template <class P> TILEKILN_DEVICE void store(const P& p, const Sums& v, int batch, int row, int column, int lane) {
  const int mine = column + (lane & 3) * 2;
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t start = batch * p.out_batch + (row + 8 * h) * p.out_row;
    const bool inside = row + 8 * h < p.m;
    if (p.features & kOutFp32) {
      float* const to = static_cast<float*>(p.out) + start + mine;
#pragma unroll
      for (int dd = 0; dd < 4; ++dd) {
        const float2 two = {v[dd * 4 + h * 2], v[dd * 4 + h * 2 + 1]};
        const int left = p.n - mine - dd * 8;
        if (inside && left >= 2 && p.features & kWideOut) {
          *reinterpret_cast<float2*>(to + dd * 8) = two;
        } else if (inside) {
          if (left >= 1) to[dd * 8] = two.x;
          if (left >= 2) to[dd * 8 + 1] = two.y;
        }
      }
    } else {
      const auto word = [&](int dd) { return pack(v[dd * 4 + h * 2], v[dd * 4 + h * 2 + 1]); };
      const uint4 eight = quad_transpose(lane, word(0), word(1), word(2), word(3));
      const int first = column + (lane & 3) * 8;
      uint16_t* const to = static_cast<uint16_t*>(p.out) + start + first;
      if (inside && first + 8 <= p.n && p.features & kWideOut) {
        *reinterpret_cast<uint4*>(to) = eight;
      } else {
        const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
        for (int e = 0; e < 8; ++e) store_if(inside && first + e < p.n, to + e, words[e / 2] >> (e % 2 * 16));
      }
    }
  }
}

// Takes so many sums from a constant place on: registers have no index.
template <int kFirst, int N, int kCount> TILEKILN_DEVICE void take(const float (&sum)[N], float (&v)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) v[i] = sum[kFirst % N + i];
}
// f(v, at) of the sums kCount at .. , one after the other, by one copy of its code.
template <int kCount, int N, class Function>
TILEKILN_DEVICE void in_turns(float (&sum)[N], Function&& f, int first = 0, int last = N / kCount) {
#pragma unroll 1
  for (int at = first; at < last; ++at) {
    float v[kCount];
    switch (at) {
      case 0: take<0>(sum, v); break;
      case 1: take<kCount>(sum, v); break;
      case 2: take<2 * kCount>(sum, v); break;
      case 3: take<3 * kCount>(sum, v); break;
      case 4: take<4 * kCount>(sum, v); break;
      case 5: take<5 * kCount>(sum, v); break;
      case 6: take<6 * kCount>(sum, v); break;
      default: take<7 * kCount>(sum, v); break;
    }
    f(v, at);
  }
}

// Stores a tile at (row, column): rows `row` and row + 8 are the lane's. Of its turns of 32 columns [first, last).
template <class P, int N>
TILEKILN_DEVICE void finish(const P& p, float (&sum)[N], int batch, int row, int column, int lane, int first = 0,
                            int last = N / 16) {
  const auto turn = [&](Sums& v, int at) {
    if (!as_they_are(p)) {
      combine(p, v, batch, row, column + 32 * at, lane);
      activate(p, v);
    }
    store(p, v, batch, row, column + 32 * at, lane);
  };
  in_turns<16>(sum, turn, first, last);
}

}  // namespace tilekiln::cuda::gemm
