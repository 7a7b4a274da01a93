// SPDX-License-Identifier: MIT
// S[row][key] = K[key] . Q[row], with lanes along the head dim. A row of K is loaded once for up to 4 rows of Q.
//   one row of a key head     a register of K times one of q, 16 keys whose sums are then added across lanes together
//   several                   a register of K times one of each of four rows, four keys, whose sums are then added together
//   every key head            the same, a key (one row a head: two are a tenth slower from DRAM) or four at a time and every head
//                             of them, as memory has them
#pragma once

#include "kernels/attention/cpu/dlanes/score_heads.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// s      rows of kMostKeys scores
// k      the addresses of `keys` rows
// fetch  one FetchRows for each fetch_keys of those rows
// q      rows of q_width words, 0 past the head dim
using Scores = void (*)(float* s, const char* const* k, const FetchRows* fetch, int keys, const float* q,
                        const HeadRows&);

template <class Row>
void scores(float* s, const char* const* k, const FetchRows* fetch, int keys, const float* q, const HeadRows& a) {
  if (a.heads_k > 1) return (a.group == 1 ? score_heads<Row> : score_heads_several<Row>)(s, k, fetch, keys, q, a);
  const int steps = (a.hdim_q + Row::kDims - 1) / Row::kDims;
  const char* last[kLanes];  // the last keys, the very last one repeated
  for (int i = 0; i < kLanes; ++i) {
    const int key = (keys - 1) / kLanes * kLanes + i;
    last[i] = k[key < keys ? key : keys - 1];
  }
  for (int key = 0; key < keys; key += kLanes) {
    const char* const* const rows = key + kLanes <= keys ? k + key : last;
    const FetchRows next = fetch[key >> a.fetch_shift].from(key & (a.fetch_keys() - 1));
    if (a.group == 1) {
      known_steps(steps, [&]<int Steps>() __attribute__((always_inline)) {
        score_one<Row, Steps>(s + key, rows, next, q, steps, a.table);
      });
      continue;
    }
    const auto some = [&]<int R>(int r) __attribute__((always_inline)) {
      float* const to = s + r * kMostKeys + key;
      const float* const from = q + r * a.q_width;
      known_steps(steps, [&]<int Steps>() __attribute__((always_inline)) {
        score_several<Row, R, Steps>(to, rows, next, r == 0 ? a.fetch_into : FetchInto::nothing, from, a.q_width, steps,
                                     a.table);
      });
    };
    int r = 0;
    for (; r + 4 <= a.group; r += 4) some.template operator()<4>(r);
    if (r + 2 <= a.group) some.template operator()<2>(r);
  }
  if (a.group > 1 && a.group % 2) {
    HeadRows last_row = a;
    last_row.group = 1;
    const int r = a.group - 1;
    FetchRows used[kMostKeys / kFetchKeys];  // nothing more to fetch
    for (int i = 0; i * kFetchKeys < keys; ++i) used[i] = {u64(k[i * kFetchKeys]), 0};
    scores<Row>(s + r * kMostKeys, k, used, keys, q + r * a.q_width, last_row);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
