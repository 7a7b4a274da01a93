// SPDX-License-Identifier: MIT
// S of every key head, a few keys at a time, as memory has them.
#pragma once

#include "kernels/attention/cpu/dlanes/score_group.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// One row of a key head and one key.
template <class Row, int Steps>
TILEKILN_INLINE vf score_key(const char* k, const Row& as, u64 next, const float* q, int steps) {
  vf x = zero();
  const auto step = [&](i64 i) __attribute__((always_inline)) {
    const i64 at = i * Row::kBytes;
    if (at % 64 == 0) fetch_lines<Row::kBytes>(next + at);
    x = Row::multiply_add(x, as.load(k + at), load(q + i * kLanes));
  };
  if constexpr (Steps > 0) {
    TILEKILN_UNROLL(8) for (int i = 0; i < Steps; ++i) step(i);
  } else {
    for (i64 i = 0; i < steps; ++i) step(i);
  }
  return x;
}

// Every key head, each with one row: a key at a time.
template <class Row>
void score_heads(float* s, const char* const* k, const FetchRows* fetch, int keys, const float* q, const HeadRows& a) {
  constexpr int kMost = kMaxStreamRows + kLanes;
  const int steps = (a.hdim_q + Row::kDims - 1) / Row::kDims, count = a.heads_k, rows = round_up(count, kLanes);
  alignas(64) float sums[kMost * kLanes], turned[kMost / kLanes][kLanes * kLanes];
  __builtin_memset(sums, 0, sizeof sums);
  const Row as(a.table);
  for (int key = 0; key < keys; key += kLanes) {
    const int some = keys - key < kLanes ? keys - key : kLanes;
    for (int i = 0; i < some; ++i) {
      const FetchRows next = fetch[(key + i) >> a.fetch_shift].from((key + i) & (a.fetch_keys() - 1));
      known_steps(steps, [&]<int Steps>() __attribute__((always_inline)) {
        for (i64 h = 0; h < count; ++h)
          store(sums + h * kLanes, score_key<Row, Steps>(k[key + i] + h * a.k_head, as, next.first + u64(h * a.k_head),
                                                         q + h * a.q_width, steps));
      });
      for (int r = 0; r < rows; r += kLanes) {
        vf x[kLanes];
        TILEKILN_UNROLL(16) for (int j = 0; j < kLanes; ++j) x[j] = load(sums + (r + j) * kLanes);
        store(turned[r / kLanes] + i * kLanes, totals(x));
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

constexpr int kHeadKeys = kLanes / 4;  // keys of score_heads_several

// The rows of every key head, four of them at a time, with kHeadKeys keys.
template <class Row, int Steps>
__attribute__((noinline)) void score_head_keys(float* s, const char* const* k, const FetchRows& fetch, const float* q,
                                               const HeadRows& a, int steps) {
  const Row as(a.table);
  const i64 row_bytes = steps * Row::kBytes;
  const bool in_a_row = a.k_head == row_bytes && fetch.step == u64(a.heads_k * row_bytes);
  FetchLines lines =
      FetchLines::of({fetch.first, in_a_row ? u64(row_bytes) : fetch.step}, kHeadKeys, Row::kBytes, row_bytes);
  for (i64 h = 0; h < a.heads_k; ++h) {
    const char* row[kHeadKeys];
    TILEKILN_UNROLL(4) for (int n = 0; n < kHeadKeys; ++n) row[n] = k[n] + h * a.k_head;
    u64 next = lines.first + u64(h * (in_a_row ? kHeadKeys * row_bytes : a.k_head));
    FetchInto into = FetchInto::l1;
    int g = 0;
    const auto some = [&]<int R>() __attribute__((always_inline)) {
      const i64 r = h * a.group + g;
      score_rows<Row, R, kHeadKeys, Steps>(s + r * kMostKeys, row, as, next, lines, into, q + r * a.q_width, a.q_width,
                                           steps);
      into = FetchInto::nothing;
      g += R;
    };
    while (g + 4 <= a.group) some.template operator()<4>();
    if (g + 2 <= a.group) some.template operator()<2>();
    if (g < a.group) some.template operator()<1>();
  }
}

template <class Row>
void score_heads_several(float* s, const char* const* k, const FetchRows* fetch, int keys, const float* q,
                         const HeadRows& a) {
  const int steps = (a.hdim_q + Row::kDims - 1) / Row::kDims;
  for (int key = 0; key < keys; key += kHeadKeys) {
    const char* last[kHeadKeys];  // the very last key repeated
    const bool all = key + kHeadKeys <= keys;
    if (!all) {
      for (int n = 0; n < kHeadKeys; ++n) last[n] = k[key + n < keys ? key + n : keys - 1];
    }
    const FetchRows next = fetch[key >> a.fetch_shift].from(key & (a.fetch_keys() - 1));
    known_steps(steps, [&]<int Steps>() __attribute__((always_inline)) {
      score_head_keys<Row, Steps>(s + key, all ? k + key : last, next, q, a, steps);
    });
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
