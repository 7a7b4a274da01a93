// S of several rows of a key head: in twos, half a register of K in both halves, or one at a time, whole registers of K.
#pragma once

#include "kernels/attention/cpu/dlanes/score_one.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kPairKeys =
    kRowAccumulators / 2;  // keys of score_twos: with two twos of rows its sums fill the accumulators

// kPairKeys keys with Twos twos of rows.
template <class Row, int Twos>
__attribute__((noinline)) void score_twos(float* s, const char* const* k, const FetchRows& fetch, FetchInto into,
                                          const float* q, i64 q_width, int steps) {
  vf sum[Twos * kPairKeys];  // by four keys, two rows, key
  TILEKILN_UNROLL(16) for (int i = 0; i < Twos * kPairKeys; ++i) sum[i] = zero();
  const char* row[kPairKeys];
  TILEKILN_UNROLL(8) for (int n = 0; n < kPairKeys; ++n) row[n] = k[n];
  for (i64 i = 0; i < steps; ++i) {
    const i64 at = i * Row::kBytes;
    if (at % 64 == 0) {
      TILEKILN_UNROLL(8)
      for (int n = 0; n < kPairKeys; ++n) fetch_lines<Row::kBytes>(fetch.first + n * fetch.step + at, into);
    }
    TILEKILN_UNROLL(2) for (int half = 0; half < 2; ++half) {
      vf y[Twos];
      TILEKILN_UNROLL(2) for (int r = 0; r < Twos; ++r) y[r] = load(q + 2 * r * q_width + (2 * i + half) * kLanes);
      TILEKILN_UNROLL(8) for (int n = 0; n < kPairKeys; ++n) {
        const vf x = Row::load_twice(row[n] + at + half * (Row::kBytes / 2));
        TILEKILN_UNROLL(2) for (int r = 0; r < Twos; ++r) {
          vf& to = sum[(n / 4 * Twos + r) * 4 + n % 4];
          to = Row::multiply_add(to, x, y[r]);
        }
      }
    }
  }
  alignas(64) float t[2 * Twos * kPairKeys];
  TILEKILN_UNROLL(8) for (int i = 0; i < Twos * kPairKeys; i += kHalfTotals) half_totals(t + 2 * i, sum + i);
  TILEKILN_UNROLL(8) for (int i = 0; i < Twos * kPairKeys / 4; ++i) {
    float* const to = s + i % Twos * 2 * kMostKeys + i / Twos * 4;
    __builtin_memcpy(to, t + 8 * i, 4 * sizeof(float));
    __builtin_memcpy(to + kMostKeys, t + 8 * i + 4, 4 * sizeof(float));
  }
}

// kLanes keys with R rows, kLanes sums at a time: whole registers of K.
template <class Row, int R>
TILEKILN_INLINE void score_several(float* s, const char* const* k, const FetchRows& fetch, FetchInto into,
                                   const float* q, i64 q_width, int steps) {
  constexpr int N = kLanes / R;  // keys
  for (int key = 0; key < kLanes; key += N) {
    vf sum[kLanes];  // by row, key
    TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) sum[i] = zero();
    for (i64 i = 0; i < steps; ++i) {
      const i64 at = i * Row::kBytes;
      if (at % 64 == 0) {
        TILEKILN_UNROLL(8)
        for (int n = 0; n < N; ++n) fetch_lines<Row::kBytes>(fetch.first + (key + n) * fetch.step + at, into);
      }
      vf y[R];
      TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) y[r] = load(q + r * q_width + i * kLanes);
      TILEKILN_UNROLL(8) for (int n = 0; n < N; ++n) {
        const vf x = Row::load(k[key + n] + at);
        TILEKILN_UNROLL(4)
        for (int r = 0; r < R; ++r) sum[r * N + n] = Row::multiply_add(sum[r * N + n], x, y[r]);
      }
    }
    alignas(64) float t[kLanes];
    store(t, totals(sum));
    TILEKILN_UNROLL(4)
    for (int r = 0; r < R; ++r) __builtin_memcpy(s + r * kMostKeys + key, t + r * N, N * sizeof(float));
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
