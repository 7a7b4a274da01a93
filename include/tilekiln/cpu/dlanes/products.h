// The two products with lanes along the head dim, for few query rows: a row of K or V is loaded once for up to 4 of them.
#pragma once

#include "tilekiln/cpu/tile.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kMaxRows = 16;   // pairs of a query and a head in a unit
constexpr int kRowKeys = 256;  // a block: long streams of K, then of V (64: 5-10 % slower from DRAM)
// While a product streams through one row it fetches two later ones, into L2 and from there into L1. Measured: into L1 alone
// leaves a cache whose rows are apart, (batch, seqlen, nhead, hdim), at 16 of 26 GB/s; into L2 alone costs GQA 10 %.
constexpr int kAhead = 64, kSoon = 16;
static_assert(kAhead >= kSoon);

// Rows of K, a register at a time, and their product with the same dims of q. kDims dims a register.
template <class T> struct Fp32Row {
  static constexpr int kDims = kLanes, kBytes = kDims * int(sizeof(T));
  static TILEKILN_INLINE vf load(const char* p) { return widen((const T*)p); }
  static TILEKILN_INLINE vf multiply_add(vf sum, vf k, vf q) { return fma(k, q, sum); }
};
#if TILEKILN_PAIRS
template <class T> struct PairRow {
  static constexpr int kDims = 2 * kLanes, kBytes = kDims * int(sizeof(T));
  static TILEKILN_INLINE vf load(const char* p) { return words(load_halves((const T*)p)); }
  static TILEKILN_INLINE vf multiply_add(vf sum, vf k, vf q) { return dot_pair(sum, k, q); }
};
#endif

// Rows of V, two registers at a time: in order, or the even and the odd dims, which O then keeps until it is stored.
template <class T> struct ValueRow {
  static constexpr bool kEvenOdd = false;
  static TILEKILN_INLINE void load_two(const char* p, vf& a, vf& b) {
    a = widen((const T*)p);
    b = widen((const T*)p + kLanes);
  }
};
template <> struct ValueRow<bf16> {
  static constexpr bool kEvenOdd = true;
  static TILEKILN_INLINE void load_two(const char* p, vf& a, vf& b) { even_odd((const bf16*)p, a, b); }
};
#if TILEKILN_PAIRS
template <> struct ValueRow<fp8> {
  static constexpr bool kEvenOdd = true;
  static TILEKILN_INLINE void load_two(const char* p, vf& a, vf& b) { even_odd(load_halves((const fp8*)p).v, a, b); }
};
#endif

template <int Bytes> TILEKILN_INLINE void fetch(const char* const* rows, i64 offset) {
  TILEKILN_UNROLL(16) for (int i = 0; i < Bytes; i += 64) {
    __builtin_prefetch(rows[kAhead] + offset + i, 0, 2);
    __builtin_prefetch(rows[kSoon] + offset + i, 0, 3);
  }
}

// One row: key by key, and a loop of keys: unrolled, every load would have a stride of 16 rows of its own, which no prefetcher
// follows (bf16 from DRAM: 17 instead of 25 GB/s). Steps: known at compile time, q in registers; 0: not.
template <class Row, int Steps, bool Fetch>
TILEKILN_INLINE void score_one(vf* sum, const char* const* k, const float* q, int steps) {
  alignas(64) float partial[kLanes * kLanes];
  vf y[Steps ? Steps : 1];
  TILEKILN_UNROLL(8) for (int i = 0; i < Steps; ++i) y[i] = load(q + i * kLanes);
  TILEKILN_UNROLL(1) for (int n = 0; n < kLanes; ++n) {
    const char* row = k[n];
    vf x = zero();
    if constexpr (Steps > 0) {
      if constexpr (Fetch) fetch<Steps * Row::kBytes>(k + n, 0);
      TILEKILN_UNROLL(8)
      for (int i = 0; i < Steps; ++i) x = Row::multiply_add(x, Row::load(row + i * Row::kBytes), y[i]);
    } else {
      for (i64 i = 0; i < steps; ++i) {
        if constexpr (Fetch) fetch<Row::kBytes>(k + n, i * Row::kBytes);
        x = Row::multiply_add(x, Row::load(row + i * Row::kBytes), load(q + i * kLanes));
      }
    }
    store(partial + n * kLanes, x);
  }
  TILEKILN_UNROLL(16) for (int n = 0; n < kLanes; ++n) sum[n] = load(partial + n * kLanes);
}

// S[row][key] = K[key] . Q[row] for kLanes keys and R rows: R x kLanes / R sums at a time.
template <class Row, int R, bool Fetch>
TILEKILN_INLINE void score_rows(float* s, const char* const* k, const float* q, int steps) {
  constexpr int N = kLanes / R;  // keys
  for (int key = 0; key < kLanes; key += N) {
    vf sum[kLanes];
    if constexpr (R == 1) {
      if (steps == 4)
        score_one<Row, 4, Fetch>(sum, k, q, steps);
      else if (steps == 8)
        score_one<Row, 8, Fetch>(sum, k, q, steps);
      else
        score_one<Row, 0, Fetch>(sum, k, q, steps);
    } else {
      TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) sum[i] = zero();
      const char* row[N];
      TILEKILN_UNROLL(16) for (int n = 0; n < N; ++n) row[n] = k[key + n];
      for (i64 i = 0; i < steps; ++i) {
        vf y[R];
        TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) y[r] = load(q + r * kMaxHdim + i * kLanes);
        TILEKILN_UNROLL(16) for (int n = 0; n < N; ++n) {
          if constexpr (Fetch) fetch<Row::kBytes>(k + key + n, i * Row::kBytes);
          const vf x = Row::load(row[n] + i * Row::kBytes);
          TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) sum[r * N + n] = Row::multiply_add(sum[r * N + n], x, y[r]);
        }
      }
    }
    alignas(64) float t[kLanes];
    store(t, totals(sum));
    TILEKILN_UNROLL(4)
    for (int r = 0; r < R; ++r) __builtin_memcpy(s + r * kRowKeys + key, t + r * N, N * sizeof(float));
  }
}

// `keys` addresses in k, a multiple of kLanes of them (the last repeated). q: rows of kMaxHdim words, 0 past the head dim.
using Scores = void (*)(float* s, const char* const* k, int keys, const float* q, int rows, int hdim);

template <class Row>
void scores(float* s, const char* const* k, int keys, const float* q, int rows, int hdim) {
  const int steps = (hdim + Row::kDims - 1) / Row::kDims;
  const auto group = [&]<int R>(int key, int r) __attribute__((always_inline)) {
    float* to = s + r * kRowKeys + key;
    if (r == 0)
      score_rows<Row, R, true>(to, k + key, q, steps);
    else
      score_rows<Row, R, false>(to, k + key, q + r * kMaxHdim, steps);
  };
  for (int key = 0; key < keys; key += kLanes) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) group.template operator()<4>(key, r);
    if (rows - r >= 2) {
      group.template operator()<2>(key, r);
      r += 2;
    }
    if (r < rows) group.template operator()<1>(key, r);
  }
}

// O[row][:] = alpha O[row][:] + sum_key P[row][key] V[key][:] for R rows and N pairs of registers.
template <class T, int R, int N, bool Fetch>
TILEKILN_INLINE void value_rows(float* o, const char* const* v, i64 offset, int keys, const float* p,
                                const float* alpha) {
  vf sum[R][2 * N];
  TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
    const vf factor = broadcast(alpha[r]);
    TILEKILN_UNROLL(8) for (int i = 0; i < 2 * N; ++i) sum[r][i] = mul(load(o + r * kMaxHdim + i * kLanes), factor);
  }
  for (i64 key = 0; key < keys; ++key) {
    const char* row = v[key] + offset;
    if constexpr (Fetch) fetch<N * 2 * kLanes* int(sizeof(T))>(v + key, offset);
    vf x[R];
    TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) x[r] = broadcast(p[r * kRowKeys + key]);
    TILEKILN_UNROLL(8) for (int i = 0; i < N; ++i) {
      vf a, b;
      ValueRow<T>::load_two(row + i * 2 * kLanes * sizeof(T), a, b);
      TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
        sum[r][2 * i] = fma(x[r], a, sum[r][2 * i]);
        sum[r][2 * i + 1] = fma(x[r], b, sum[r][2 * i + 1]);
      }
    }
  }
  TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int i = 0; i < 2 * N; ++i) store(o + r * kMaxHdim + i * kLanes, sum[r][i]);
  }
}

using Values = void (*)(float* o, const char* const* v, int keys, const float* p, const float* alpha, int rows,
                        int hdim);

template <class T>
void values(float* o, const char* const* v, int keys, const float* p, const float* alpha, int rows, int hdim) {
  const int pairs = (hdim + 2 * kLanes - 1) / (2 * kLanes);
  const auto group = [&]<int R, int N, bool Fetch>(int r) __attribute__((always_inline)) {
    int i = 0;
    const auto step = [&]<int Count>() __attribute__((always_inline)) {
      value_rows<T, R, Count, Fetch>(o + r * kMaxHdim + i * 2 * kLanes, v, i * 2 * kLanes * int(sizeof(T)), keys,
                                     p + r * kRowKeys, alpha + r);
      i += Count;
    };
    while (i + N <= pairs) step.template operator()<N>();
    if constexpr (N > 2) {
      if (i + 2 <= pairs) step.template operator()<2>();
    }
    if constexpr (N > 1) {
      if (i < pairs) step.template operator()<1>();
    }
  };
  const auto rows_from = [&]<int R, int N>(int r) __attribute__((always_inline)) {
    if (r == 0)
      group.template operator()<R, N, true>(r);
    else
      group.template operator()<R, N, false>(r);
  };
  int r = 0;
  for (; r + 4 <= rows; r += 4) rows_from.template operator()<4, kRowAccumulators / 8>(r);
  if (rows - r >= 2) {
    rows_from.template operator()<2, kRowAccumulators / 4>(r);
    r += 2;
  }
  if (r < rows) rows_from.template operator()<1, 4>(r);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
