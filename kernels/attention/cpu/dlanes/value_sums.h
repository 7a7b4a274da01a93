// SPDX-License-Identifier: MIT
// Sums over keys of P times V, in registers: P in fp32, or two keys at a time in bf16.
#pragma once

#include "kernels/attention/cpu/dlanes/products.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// P in fp32. R rows, N pairs of registers.
template <class T, int R, int N> struct ValueSums {
  static TILEKILN_INLINE void add(vf (&sum)[R][2 * N], const char* const* v, FetchRows fetch, FetchInto into,
                                  i64 offset, i64 key, i64 end, const float* p, Table table) {
    const ValueRow<T> as(table);
    u64 next = fetch.first;
    for (; key < end; ++key, next += fetch.step) {
      const char* const row = v[key] + offset;
      word x[R];
      TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) x[r] = load_word(p[r * kMostKeys + key]);
      TILEKILN_UNROLL(8) for (int i = 0; i < N; ++i) {
        vf a, b;
        fetch_lines<2 * kLanes* int(sizeof(T))>(next + i * 2 * kLanes * sizeof(T), into);
        as.load_two(row + i * 2 * kLanes * sizeof(T), a, b);
        TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
          sum[r][2 * i] = fma(x[r], a, sum[r][2 * i]);
          sum[r][2 * i + 1] = fma(x[r], b, sum[r][2 * i + 1]);
        }
      }
    }
  }
};

#if TILEKILN_PAIRS
// P in bf16, two keys at a time; a last key without another is paired with 0.
template <class T, int R, int N> struct ValuePairSums {
  static TILEKILN_INLINE void add(vf (&sum)[R][2 * N], const char* const* v, FetchRows fetch, FetchInto into,
                                  i64 offset, i64 key, i64 end, const float* p, Table table) {
    const Halves<T> as(table);
    u64 next = fetch.first;
    const auto two_keys = [&]<bool Both>() __attribute__((always_inline)) {
      const T *const one = (const T*)(v[key] + offset), *const two = (const T*)(v[key + Both] + offset);
      constexpr int kBytes = N * 2 * kLanes * int(sizeof(T));
      fetch_lines<kBytes>(next, into);
      if constexpr (Both) fetch_lines<kBytes>(next + fetch.step, into);
      word x[R];
      TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) x[r] = load_word((const bf16*)(p + r * kMostKeys) + key);
      TILEKILN_UNROLL(8) for (int i = 0; i < N; ++i) {
        vf low, high;
        interleave_lanes(as.load(one + i * 2 * kLanes), Both ? as.load(two + i * 2 * kLanes) : zero_halves(), low,
                         high);
        TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
          sum[r][2 * i] = dot_pair(sum[r][2 * i], low, x[r]);
          sum[r][2 * i + 1] = dot_pair(sum[r][2 * i + 1], high, x[r]);
        }
      }
    };
    for (; key + 1 < end; key += 2, next += 2 * fetch.step) two_keys.template operator()<true>();
    if (key < end) two_keys.template operator()<false>();
  }
};
#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
