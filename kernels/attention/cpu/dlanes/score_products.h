// S[row][key] = K[key] . Q[row], with lanes along the head dim. A row of K is loaded once for up to 4 rows of Q.
//   one row of a key head     a register of K times one of q, 16 keys whose sums are then added across lanes together
//   several                   half a register of K, in both halves, times the same dims of two rows of q: fewer sums across lanes.
//                             Where K must be converted, which is then done twice, a register of K times one of each row
//   every key head            a key or two at a time and every head of them, as memory has them: one where heads have one row each
//                             (two: a tenth slower from DRAM), two where they have several (eight: a fifth slower)
#pragma once

#include "kernels/attention/cpu/dlanes/products.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kPairKeys =
    kRowAccumulators / 2;  // keys of score_twos: with two twos of rows its sums fill the accumulators

// s      rows of kMostKeys scores
// k      the addresses of `keys` rows
// fetch  one FetchRows for each fetch_keys of those rows
// q      rows of q_width words, 0 past the head dim. Where a key head has several rows and Row::kTwos is set, two rows of Q are
//        interleaved: register i holds the words [i kLanes / 2, (i + 1) kLanes / 2) of the first row, then those of the second. An
//        odd last row is stored plainly
using Scores = void (*)(float* s, const char* const* k, const FetchRows* fetch, int keys, const float* q,
                        const HeadRows&);

// Calls f.operator()<Steps>() with the number of steps, 0 for one that is not known at compile time.
template <class F> TILEKILN_INLINE void known_steps(int steps, F&& f) {
  if (steps == 4)
    f.template operator()<4>();
  else if (steps == 8)
    f.template operator()<8>();
  else
    f.template operator()<0>();
}

// Key by key, and a loop of keys: unrolled, every load would have a stride of 16 rows of its own, which no prefetcher follows.
// Steps: known at compile time, q in registers; 0: not.
template <class Row, int Steps>
TILEKILN_INLINE void score_one(float* s, const char* const* k, FetchRows fetch, const float* q, int steps) {
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
        x = Row::multiply_add(x, Row::load(row + i * Row::kBytes), y[i]);
      }
    } else {
      for (i64 i = 0; i < steps; ++i) {
        if (i * Row::kBytes % 64 == 0) fetch_lines<Row::kBytes>(next + i * Row::kBytes);
        x = Row::multiply_add(x, Row::load(row + i * Row::kBytes), load(q + i * kLanes));
      }
    }
    store(partial + n * kLanes, x);
  }
  vf sum[kLanes];
  TILEKILN_UNROLL(16) for (int n = 0; n < kLanes; ++n) sum[n] = load(partial + n * kLanes);
  store(s, totals(sum));
}

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

template <class Row>
void scores(float* s, const char* const* k, const FetchRows* fetch, int keys, const float* q, const HeadRows& a) {
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
