// SPDX-License-Identifier: MIT
// S of several rows of a key head: whole registers of K.
#pragma once

#include "kernels/attention/cpu/dlanes/score_one.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// N keys with R rows, N R <= kLanes, whose sums are added across lanes together. next: the lines to fetch, moved past those of these
// keys. Steps: known at compile time, or 0.
template <class Row, int R, int N, int Steps>
TILEKILN_INLINE void score_rows(float* s, const char* const (&row)[N], const Row& as, u64& next,
                                const FetchLines& lines, FetchInto into, const float* q, i64 width, int steps) {
  const i64 q_width = Steps ? Steps * kLanes : width;
  vf sum[kLanes];  // by row, key
  TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) sum[i] = zero();
  const auto step = [&](i64 i) __attribute__((always_inline)) {
    const i64 at = i * Row::kBytes;
    if (at % 64 == 0) {
      TILEKILN_UNROLL(8) for (int n = 0; n < N; ++n) fetch_lines<Row::kBytes>(next + n * lines.gap, into);
    }
    next += lines.next;
    vf y[R];
    TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) y[r] = load(q + r * q_width + i * kLanes);
    TILEKILN_UNROLL(8) for (int n = 0; n < N; ++n) {
      const vf x = as.load(row[n] + at);
      TILEKILN_UNROLL(4)
      for (int r = 0; r < R; ++r) sum[r * N + n] = Row::multiply_add(sum[r * N + n], x, y[r]);
    }
  };
  if constexpr (Steps > 0) {
    TILEKILN_UNROLL(8) for (int i = 0; i < Steps; ++i) step(i);
  } else {
    for (i64 i = 0; i < steps; ++i) step(i);
  }
  next += lines.group;
  alignas(64) float t[kLanes];
  store(t, totals(sum));
  TILEKILN_UNROLL(4)
  for (int r = 0; r < R; ++r) __builtin_memcpy(s + r * kMostKeys, t + r * N, N * sizeof(float));
}

// kLanes keys with R rows. Not inlined: in a larger function compilers keep addresses in vector registers (1.4 of the time).
template <class Row, int R, int Steps>
__attribute__((noinline)) void score_several(float* s, const char* const* k, const FetchRows& fetch, FetchInto into,
                                             const float* q, i64 q_width, int steps, Table table) {
  constexpr int N = kLanes / R;
  const Row as(table);
  const FetchLines lines = FetchLines::of(fetch, N, Row::kBytes, steps * Row::kBytes);
  u64 next = lines.first;
  for (int key = 0; key < kLanes; key += N) {
    const char* row[N];
    TILEKILN_UNROLL(8) for (int n = 0; n < N; ++n) row[n] = k[key + n];
    score_rows<Row, R, N, Steps>(s + key, row, as, next, lines, into, q, q_width, steps);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
