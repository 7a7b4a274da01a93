// S[row][key] = K[key] . Q[row], with lanes along the head dim. A row of K is loaded once for up to 4 rows of Q.
//   one row of a key head     a register of K times one of q, 16 keys whose sums are then added across lanes together
//   several                   half a register of K, in both halves, times the same dims of two rows of q: fewer sums across lanes.
//                             Where K must be converted, which is then done twice, a register of K times one of each row
//   every key head            a key or two at a time and every head of them, as memory has them: one where heads have one row each
//                             (two: a tenth slower from DRAM), two where they have several (eight: a fifth slower)
#pragma once

#include "kernels/attention/cpu/dlanes/score_heads.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// s      rows of kMostKeys scores
// k      the addresses of `keys` rows
// fetch  one FetchRows for each fetch_keys of those rows
// q      rows of q_width words, 0 past the head dim. Where a key head has several rows and Row::kTwos is set, two rows of Q are
//        interleaved: register i holds the words [i kLanes / 2, (i + 1) kLanes / 2) of the first row, then those of the second. An
//        odd last row is stored plainly
using Scores = void (*)(float* s, const char* const* k, const FetchRows* fetch, int keys, const float* q,
                        const HeadRows&);

template <class Row>
void scores(float* s, const char* const* k, const FetchRows* fetch, int keys, const float* q, const HeadRows& a) {
  if (a.by_head) {
    return each_head(k, fetch, keys, a.k_head, a,
                     [&](int row, const char* const* rows, const FetchRows* next, const HeadRows& one) {
                       scores<Row>(s + row * kMostKeys, rows, next, keys, q + row * a.q_width, one);
                     });
  }
  if (a.heads_k > 1) return (a.group == 1 ? score_heads<Row, 1, 1> : score_heads<Row, 4, 2>)(s, k, fetch, keys, q, a);
  const int steps = (a.hdim_q + Row::kDims - 1) / Row::kDims, step = Row::kTwos && a.group > 1 ? kPairKeys : kLanes;
  const char* last[kLanes];  // the last keys, the very last one repeated
  static_assert(kPairKeys <= kLanes);
  for (int i = 0; i < step; ++i) {
    const int key = (keys - 1) / step * step + i;
    last[i] = k[key < keys ? key : keys - 1];
  }
  for (int key = 0; key < keys; key += step) {
    const char* const* const rows = key + step <= keys ? k + key : last;
    const FetchRows next = fetch[key / kFetchKeys].from(key % kFetchKeys);
    if (a.group == 1) {
      known_steps(steps, [&]<int Steps>()
                             __attribute__((always_inline)) { score_one<Row, Steps>(s + key, rows, next, q, steps); });
      continue;
    }
    const auto some = [&]<int R>(int r) __attribute__((always_inline)) {
      float* const to = s + r * kMostKeys + key;
      const float* const from = q + r * a.q_width;
      if constexpr (Row::kTwos)
        score_twos<Row, R / 2>(to, rows, next, r == 0 ? a.fetch_into : FetchInto::nothing, from, a.q_width, steps);
      else
        score_several<Row, R>(to, rows, next, r == 0 ? a.fetch_into : FetchInto::nothing, from, a.q_width, steps);
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
