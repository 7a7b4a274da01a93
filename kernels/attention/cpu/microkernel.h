// SPDX-License-Identifier: MIT
// The two register-blocked products: R rows x N vectors of accumulators, broadcasting K or V from where it lies.
#pragma once

#include "kernels/attention/cpu/squares.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// The rows of K: `count` of them, `stride` bytes apart; or, in runs of `run_keys`, a multiple of 4, at the addresses
// `runs`.
struct Keys {
  const char* base;
  i64 stride;
  int count;
  const char* const* runs = nullptr;
  int run_keys = 0;

  // Keys as if the run of `key` were all there is; `end` becomes its end, if that is before.
  TILEKILN_INLINE Keys run_of(int key, int& end) const {
    if (!runs) return *this;
    const int i = key / run_keys, begin = i * run_keys;
    if (end > begin + run_keys) end = begin + run_keys;
    return {runs[i] - begin * stride, stride, count};
  }
};

// The rows of V, in words; runs as those of K.
struct ValueRows {
  const float* base;
  i64 stride;
  const char* const* runs = nullptr;
  int run_keys = 0;

  // Calls f(row, begin, end) for each run of the rows [begin, end), `row` being the address of the first of them.
  template <class F> TILEKILN_INLINE void each_run(i64 begin, i64 end, F&& f) const {
    i64 run = 0, first = 0;
    if (runs && begin > 0) {  // a division costs a tenth of what a run does
      run = begin / run_keys;
      first = run * run_keys;
    }
    while (begin < end) {
      const i64 next = first + run_keys, run_end = runs && next < end ? next : end;
      f((runs ? (const float*)runs[run++] : base) + (begin - first) * stride, begin, run_end);
      begin = first = run_end;
    }
  }
};

// The addresses of R rows from `first`: a pointer for every 4 of them and the stride, so that 16 rows need no spilled pointers.
template <int R> struct StridedRows {
  const char* quad[(R + 3) / 4];
  i64 stride;

  TILEKILN_INLINE StridedRows(const Keys& keys, int first) : stride(keys.stride) {
    TILEKILN_UNROLL(4) for (int r = 0; r < R; r += 4) quad[r / 4] = keys.base + (first + r) * keys.stride;
  }
  TILEKILN_INLINE const char* at(int r) const { return quad[r / 4] + r % 4 * stride; }
  TILEKILN_INLINE word word_of(int r) const { return load_word(at(r)); }
  TILEKILN_INLINE void next_word() { TILEKILN_UNROLL(4) for (int r = 0; r < R; r += 4) quad[r / 4] += 4; }
};

// Up to 4 rows at the end of a sequence: rows past the last key repeat it.
struct LastRows {
  const char* row[4];

  TILEKILN_INLINE LastRows(const Keys& keys, int first) {
    for (int r = 0; r < 4; ++r)
      row[r] = keys.base + (first + r < keys.count ? first + r : keys.count - 1) * keys.stride;
  }
  TILEKILN_INLINE const char* at(int r) const { return row[r]; }
  TILEKILN_INLINE word word_of(int r) const { return load_word(at(r)); }
  TILEKILN_INLINE void next_word() { TILEKILN_UNROLL(4) for (int r = 0; r < 4; ++r) row[r] += 4; }
};

// True where the words of Q lie in squares.
template <class Compute> constexpr bool squared_queries(int words) { return kSquares<Compute> && words % 2 == 0; }

// S[r][:] = sum_w K[r][w] Q^T[w][:], and maximum = max(maximum, S).
template <class Compute, int R, int N, class Rows>
TILEKILN_INLINE void score_rows(Rows rows, int words, const float* q, float* s, vf* maximum) {
  if constexpr (kSquares<Compute>) {
    if (squared_queries<Compute>(words)) return score_squares<R, N>(rows, words, q, s, maximum);
  }
  vf sum[R][N];
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) { TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = zero(); }
  TILEKILN_UNROLL(2) for (i64 w = 0; w < words; ++w) {
    vf x[N];
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) x[j] = load(q + w * kTileQ + j * kLanes);
    TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
      const word y = rows.word_of(r);
      TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = Compute::multiply_add(sum[r][j], x[j], y);
      before_loads(sum[r][0], sum[r][N - 1]);
    }
    rows.next_word();
  }
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) {
      store(s + r * kTileQ + j * kLanes, sum[r][j]);
      maximum[j] = max(maximum[j], sum[r][j]);
    }
  }
}

// Nothing to do beside a product.
struct Nothing {
  TILEKILN_INLINE void operator()(int, int) const {}
};

// S of the keys [begin, end) and N vectors; end - begin is a multiple of 4, or end is the last key. Rows past the last key get
// its scores, which leaves the maximum right. beside(first, last) is called as the keys [first, last) are done: for fetches, which
// find room between products.
template <class Compute, int N, class Beside = Nothing>
TILEKILN_INLINE void score_block(const Keys& keys, int begin, int end, int words, const float* q, float* s, vf* maximum,
                                 Beside&& beside = {}) {
  constexpr int R = block_rows(N);
  vf top[N];  // in registers over all keys
  TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) top[j] = maximum[j];
  constexpr int kStep = R % 4 ? 2 * R : R;  // leaves a multiple of 4
  for (int key = begin, run_end; key < end; key = run_end) {
    run_end = end;
    const Keys run = keys.run_of(key, run_end);
    for (; key + kStep <= run_end; key += kStep) {
      for (int r = key; r < key + kStep; r += R) {
        score_rows<Compute, R, N>(StridedRows<R>(run, r), words, q, s + r * kTileQ, top);
        beside(r, r + R);
      }
    }
    if constexpr (R != 4) {
      for (; key + 4 <= run_end; key += 4)
        score_rows<Compute, 4, N>(StridedRows<4>(run, key), words, q, s + key * kTileQ, top);
    }
    if (key < run_end) score_rows<Compute, 4, N>(LastRows(run, key), words, q, s + key * kTileQ, top);
  }
  TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) maximum[j] = top[j];
}

// Words [begin, end) of V that the vectors [First, First + Count) of a group of N see.
template <int First, int Count> struct SeenWords { int begin, end; };

// sum[r][:] += sum_w V[w][r] P[w][:] over the words that the vectors see.
template <class Compute, int R, int N, int First, int Count>
TILEKILN_INLINE void add_values(vf (&sum)[R][N], const float* p, const ValueRows& v, int d,
                                SeenWords<First, Count> words) {
  v.each_run(words.begin, words.end, [&](const float* row, i64 w, i64 run_end) __attribute__((always_inline)) {
    row += d;
    const i64 stride = v.stride;
    TILEKILN_UNROLL(2) for (; w < run_end; ++w, row += stride) {
      vf x[Count];
      TILEKILN_UNROLL(8) for (int j = 0; j < Count; ++j) x[j] = load(p + w * kTileQ + (First + j) * kLanes);
      TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
        const word y = load_word(row + r);
        TILEKILN_UNROLL(8)
        for (int j = 0; j < Count; ++j) sum[r][First + j] = Compute::multiply_add(sum[r][First + j], x[j], y);
        before_loads(sum[r][First], sum[r][First + Count - 1]);
      }
    }
  });
}

// O[r][:] = alpha O[r][:] + sum_w V[w][r] P[w][:] over all words of `seen`. A null alpha: O holds nothing yet. The words are summed
// from 0 and O is added last: a sum of thousands of like terms, one by one, drifts by some u a term.
template <class Compute, int R, int N, class... Seen>
TILEKILN_INLINE void value_rows(const float* p, const ValueRows& v, int d, float* o, const vf* alpha, Seen... seen) {
  vf sum[R][N];
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) { TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) sum[r][j] = zero(); }
  (add_values<Compute>(sum, p, v, d, seen), ...);
  if (alpha) {
    TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
      TILEKILN_UNROLL(8)
      for (int j = 0; j < N; ++j) sum[r][j] = fma(load(o + r * kTileQ + j * kLanes), alpha[j], sum[r][j]);
    }
  }
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) store(o + r * kTileQ + j * kLanes, sum[r][j]);
  }
}

// f.operator()<R>(d) for all `rows` rows of O^T, a multiple of 4, as many at a time as N vectors leave registers for.
template <int N, class F> TILEKILN_INLINE void row_groups(int rows, F&& f) {
  constexpr int R = block_rows(N);
  int d = 0;
  for (; d + R <= rows; d += R) f.template operator()<R>(d);
  if constexpr (R != 4) {
    for (; d + 4 <= rows; d += 4) f.template operator()<4>(d);
  }
  if constexpr (R % 4 != 0) {
    if (d < rows) f.template operator()<2>(d);
  }
}

// O += V^T P for all `rows` rows of O^T (a multiple of 4) and N vectors. beside(first, last): as in score_block, of rows of O^T.
template <class Compute, int N, class Beside = Nothing>
TILEKILN_INLINE void value_block(const float* p, const ValueRows& v, int begin, int end, float* o, int rows,
                                 const vf* alpha, Beside&& beside = {}) {
  row_groups<N>(rows, [&]<int R>(int d) __attribute__((always_inline)) {
    value_rows<Compute, R, N>(p, v, d, o + d * kTileQ, alpha, SeenWords<0, N>{begin, end});
    beside(d, d + R);
  });
}

// P V from word 0, where P is in squares if the ISA has them and V lies in one run.
template <class Compute, int N, class Beside>
TILEKILN_INLINE void every_value(const float* p, const ValueRows& v, int begin, int end, float* o, int rows,
                                 const vf* alpha, Beside&& beside) {
  row_groups<N>(rows, [&]<int R>(int d) __attribute__((always_inline)) {
    float* const to = o + d * kTileQ;
    if constexpr (kSquares<Compute>) {
      if (!v.runs) {
        value_squares<R, N>(p, v.base + d, v.stride, end, to, alpha);
        return beside(d, d + R);
      }
    }
    value_rows<Compute, R, N>(p, v, d, to, alpha, SeenWords<0, N>{begin, end});
    beside(d, d + R);
  });
}

// Multiplies two vectors, each over its own words, which overlap or touch: those that both see broadcast V for both.
template <class Compute>
TILEKILN_INLINE void value_pair(const float* p, const ValueRows& v, const int (&begin)[2], const int (&end)[2],
                                float* o, int rows, const vf* alpha) {
  const int both_begin = begin[0] > begin[1] ? begin[0] : begin[1], both_end = end[0] < end[1] ? end[0] : end[1];
  row_groups<2>(rows, [&]<int R>(int d) __attribute__((always_inline)) {
    value_rows<Compute, R, 2>(p, v, d, o + d * kTileQ, alpha, SeenWords<0, 1>{begin[0], both_begin},
                              SeenWords<1, 1>{begin[1], both_begin}, SeenWords<0, 2>{both_begin, both_end},
                              SeenWords<0, 1>{both_end, end[0]}, SeenWords<1, 1>{both_end, end[1]});
  });
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
