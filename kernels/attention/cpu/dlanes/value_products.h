// SPDX-License-Identifier: MIT
// O[row][:] = alpha[row] O[row][:] + sum_key P[row][key] V[key][:], with lanes along the head dim. A row of V is loaded once for up
// to 4 rows of P.
#pragma once

#include "kernels/attention/cpu/dlanes/value_sums.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// o: rows of o_width. v, fetch: as k and fetch of Scores. p: rows of kMostKeys floats, or of as many bf16 at the same distance.
using Values = void (*)(float* o, const char* const* v, const FetchRows* fetch, int keys, const float* p,
                        const float* alpha, const HeadRows&);

// MostRows: 1 where each key head has one row; 4 for any number of rows, taken four, two and one at a time.
template <template <class, int, int> class Sums, class T, int MostRows>
void values(float* o, const char* const* v, const FetchRows* fetch, int keys, const float* p, const float* alpha,
            const HeadRows& a) {
  constexpr int kPairBytes = 2 * kLanes * int(sizeof(T));
  const int pairs = (a.hdim_v + 2 * kLanes - 1) / (2 * kLanes);
  for (int r = 0; r < a.heads_k * a.group; ++r) {
    if (alpha[r] == 1) continue;  // seldom otherwise after the first blocks
    for (int d = 0; d < a.hdim_v; d += kLanes) {
      float* const at = o + r * a.o_width + d;
      store(at, mul(load(at), broadcast(alpha[r])));
    }
  }
  for (int key = 0; key < keys; key += a.chunk) {
    const int end = keys - key < a.chunk ? keys : key + a.chunk;
    for (int h = 0; h < a.heads_k; ++h) {
      bool even = true;  // all parts of a row are as wide
      const auto sums = [&]<int R, int N>(int row, int i) __attribute__((always_inline)) {
        float* const to = o + row * a.o_width + i * 2 * kLanes;
        vf sum[R][2 * N];
        TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
          TILEKILN_UNROLL(8) for (int j = 0; j < 2 * N; ++j) sum[r][j] = zero();
        }
        const i64 offset = h * a.v_head + i * kPairBytes;
        const FetchInto into = row == h * a.group ? a.fetch_into : FetchInto::nothing;
        const FetchRows* ahead = fetch + (key >> a.fetch_shift);
        for (int begin = key; begin < end; begin += a.fetch_keys(), ++ahead) {
          const int last = end - begin < a.fetch_keys() ? end : begin + a.fetch_keys();
          const FetchRows lines = fetch_of_part(*ahead, last - begin, h * (pairs / N) + i / N, a.heads_k * (pairs / N),
                                                even ? N * kPairBytes : 0, offset);
          Sums<T, R, N>::add(sum, v, lines, into, offset, begin, last, p + row * kMostKeys, a.table);
        }
        TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
          TILEKILN_UNROLL(8) for (int j = 0; j < 2 * N; ++j) {
            float* const at = to + r * a.o_width + j * kLanes;
            store(at, add(load(at), sum[r][j]));  // last: see value_rows of microkernel.h
          }
        }
      };
      const auto rows_from = [&]<int R, int N>(int r) __attribute__((always_inline)) {
        int i = 0;
        even = pairs % N == 0;
        for (; i + N <= pairs; i += N) sums.template operator()<R, N>(h * a.group + r, i);
        if constexpr (N > 2) {
          for (; i + 2 <= pairs; i += 2) sums.template operator()<R, 2>(h * a.group + r, i);
        }
        if constexpr (N > 1) {
          for (; i < pairs; ++i) sums.template operator()<R, 1>(h * a.group + r, i);
        }
      };
      int r = 0;
      if constexpr (MostRows > 1) {
        for (; r + 4 <= a.group; r += 4) rows_from.template operator()<4, kRowAccumulators / 8>(r);
        if (a.group - r >= 2) {
          rows_from.template operator()<2, kRowAccumulators / 4>(r);
          r += 2;
        }
      }
      if (r < a.group) rows_from.template operator()<1, 4>(r);
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
