// SPDX-License-Identifier: MIT
// S of one row of a key head.
#pragma once

#include "kernels/attention/cpu/dlanes/products.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Calls f.operator()<Steps>() with the number of steps, 0 for one that is not known at compile time.
template <class F> TILEKILN_INLINE void known_steps(int steps, F&& f) {
  if (steps == 2)
    f.template operator()<2>();
  else if (steps == 4)
    f.template operator()<4>();
  else if (steps == 8)
    f.template operator()<8>();
  else
    f.template operator()<0>();
}

// Key by key, and a loop of keys: unrolled, every load would have a stride of 16 rows of its own, which no prefetcher follows.
// Steps: known at compile time, q in registers; 0: not.
template <class Row, int Steps>
TILEKILN_INLINE void score_one(float* s, const char* const* k, FetchRows fetch, const float* q, int steps,
                               Table table) {
  const Row as(table);
  alignas(64) float partial[kLanes * kLanes];
  vf y[Steps ? Steps : 1];
  TILEKILN_UNROLL(8) for (int i = 0; i < Steps; ++i) y[i] = load(q + i * kLanes);
  u64 next = fetch.first;
  TILEKILN_UNROLL(1) for (int n = 0; n < kLanes; ++n, next += fetch.step) {
    const char* const row = k[n];
    vf x = zero();
    if constexpr (Steps > 0) {
      TILEKILN_UNROLL(8) for (int i = 0; i < Steps; ++i) {
        if (i * Row::kBytes % 64 == 0) fetch_lines<Row::kBytes>(next + i * Row::kBytes);
        x = Row::multiply_add(x, as.load(row + i * Row::kBytes), y[i]);
      }
    } else {
      for (i64 i = 0; i < steps; ++i) {
        if (i * Row::kBytes % 64 == 0) fetch_lines<Row::kBytes>(next + i * Row::kBytes);
        x = Row::multiply_add(x, as.load(row + i * Row::kBytes), load(q + i * kLanes));
      }
    }
    store(partial + n * kLanes, x);
  }
  vf sum[kLanes];
  TILEKILN_UNROLL(16) for (int n = 0; n < kLanes; ++n) sum[n] = load(partial + n * kLanes);
  store(s, totals(sum));
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
