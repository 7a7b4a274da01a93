// S of every key head, a key or two at a time, as memory has them.
#pragma once

#include "kernels/attention/cpu/dlanes/score_group.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// R rows of a key head and Keys keys; the sums of the second key follow `rows` rows later.
template <class Row, int R, int Keys, int Steps>
TILEKILN_INLINE void score_keys(float* sums, i64 rows, const char* const* k, const FetchRows& fetch, i64 offset,
                                const float* q, i64 q_width, int steps) {
  vf x[Keys][R];
  const char* row[Keys];
  u64 next[Keys];
  TILEKILN_UNROLL(2) for (int n = 0; n < Keys; ++n) {
    row[n] = k[n] + offset;
    next[n] = fetch.from(n).first + u64(offset);
    TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) x[n][r] = zero();
  }
  const auto step = [&](i64 i) __attribute__((always_inline)) {
    const i64 at = i * Row::kBytes;
    vf y[Keys];
    TILEKILN_UNROLL(2) for (int n = 0; n < Keys; ++n) {
      if (at % 64 == 0) fetch_lines<Row::kBytes>(next[n] + at);
      y[n] = Row::load(row[n] + at);
    }
    TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
      const vf w = load(q + r * q_width + i * kLanes);
      TILEKILN_UNROLL(2) for (int n = 0; n < Keys; ++n) x[n][r] = Row::multiply_add(x[n][r], y[n], w);
    }
  };
  if constexpr (Steps > 0) {
    TILEKILN_UNROLL(8) for (int i = 0; i < Steps; ++i) step(i);
  } else {
    for (i64 i = 0; i < steps; ++i) step(i);
  }
  TILEKILN_UNROLL(2) for (int n = 0; n < Keys; ++n) {
    TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) store(sums + (n * rows + r) * kLanes, x[n][r]);
  }
}

// Every row of every key head, MostRows at a time.
template <class Row, int MostRows, int Keys, int Steps>
TILEKILN_INLINE void score_heads_of(float* sums, i64 rows, const char* const* k, const FetchRows& fetch, const float* q,
                                    const HeadRows& a, int steps) {
  i64 offset = 0;
  for (int h = 0; h < a.heads_k; ++h, offset += a.k_head) {
    const auto some = [&]<int R>() __attribute__((always_inline)) {
      score_keys<Row, R, Keys, Steps>(sums, rows, k, fetch, offset, q, a.q_width, steps);
      sums += R * kLanes;
      q += R * a.q_width;
    };
    int g = 0;
    for (; g + MostRows <= a.group; g += MostRows) some.template operator()<MostRows>();
    if constexpr (MostRows > 1) {
      for (; g < a.group; ++g) some.template operator()<1>();
    }
  }
}

template <class Row, int MostRows, int Keys>
void score_heads(float* s, const char* const* k, const FetchRows* fetch, int keys, const float* q, const HeadRows& a) {
  constexpr int kMost = kMaxStreamRows + kLanes;
  const int steps = (a.hdim_q + Row::kDims - 1) / Row::kDims, count = a.heads_k * a.group,
            rows = round_up(count, kLanes);
  alignas(64) float sums[Keys * kMost * kLanes], turned[kMost / kLanes][kLanes * kLanes];
  __builtin_memset(sums, 0, sizeof sums);
  for (int key = 0; key < keys; key += kLanes) {
    const int some = keys - key < kLanes ? keys - key : kLanes;
    for (int i = 0; i < some; i += Keys) {
      const char* const at[2] = {k[key + i], k[key + i + (i + 1 < some)]};
      const FetchRows next = fetch[(key + i) >> a.fetch_shift].from((key + i) & (a.fetch_keys() - 1));
      known_steps(steps, [&]<int Steps>() __attribute__((always_inline)) {
        score_heads_of<Row, MostRows, Keys, Steps>(sums, rows, at, next, q, a, steps);
      });
      for (int r = 0; r < Keys * rows; r += kLanes) {
        vf x[kLanes];
        TILEKILN_UNROLL(16) for (int j = 0; j < kLanes; ++j) x[j] = load(sums + (r + j) * kLanes);
        store(turned[r % rows / kLanes] + (i + r / rows) * kLanes, totals(x));
      }
    }
    for (int r = 0; r < count; r += kLanes) {
      vf x[kLanes];
      TILEKILN_UNROLL(16)
      for (int j = 0; j < kLanes; ++j) x[j] = load(turned[r / kLanes] + (j < some ? j : 0) * kLanes);
      transpose(x);
      TILEKILN_UNROLL(16)
      for (int j = 0; j < kLanes; ++j)
        if (r + j < count) store(s + (r + j) * kMostKeys + key, x[j]);
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
