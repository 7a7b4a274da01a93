// The two products with lanes along the head dim, for few query rows: a row of K or V is loaded once for up to 4 of them.
#pragma once

#include "tilekiln/cpu/tile.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kMaxRows = 16;  // pairs of a query and a head in a unit

// Rows of K, a register at a time, and their product with the same dims of q. kDims dims a register.
template <class T> struct Fp32Row {
  static constexpr int kDims = kLanes, kBytes = kDims * int(sizeof(T));
  static TILEKILN_INLINE vf load(const char* p) { return widen((const T*)p); }
  static TILEKILN_INLINE vf multiply_add(vf sum, vf k, vf q) { return fma(k, q, sum); }
};
#if TILEKILN_PAIRS
template <class T> struct PairRow {
  static constexpr int kDims = 2 * kLanes, kBytes = kDims * int(sizeof(T));
  static TILEKILN_INLINE vf load(const char* p) { return words(load_halves((const T*)p, kDims)); }
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
  static TILEKILN_INLINE void load_two(const char* p, vf& a, vf& b) {
    even_odd(load_halves((const fp8*)p, 2 * kLanes).v, a, b);
  }
};
#endif

// S[row][key] = K[key] . Q[row] for kLanes keys and R rows: R x kLanes / R sums at a time.
template <class Row, int R> TILEKILN_INLINE void score_rows(float* s, const char* const* k, const float* q, int steps) {
  constexpr int N = kLanes / R;  // keys
  for (int key = 0; key < kLanes; key += N) {
    vf sum[kLanes];
    if constexpr (R == 1) {
      // Key by key: memory sees one stream.
      TILEKILN_UNROLL(16) for (int n = 0; n < N; ++n) {
        vf x = zero();
        const char* row = k[key + n];
        TILEKILN_UNROLL(4)
        for (i64 i = 0; i < steps; ++i) x =
            Row::multiply_add(x, Row::load(row + i * Row::kBytes), load(q + i * kLanes));
        sum[n] = x;
      }
    } else {
      TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) sum[i] = zero();
      const char* row[N];
      TILEKILN_UNROLL(16) for (int n = 0; n < N; ++n) row[n] = k[key + n];
      for (i64 i = 0; i < steps; ++i) {
        vf y[R];
        TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) y[r] = load(q + r * kMaxHdim + i * kLanes);
        TILEKILN_UNROLL(16) for (int n = 0; n < N; ++n) {
          const vf x = Row::load(row[n] + i * Row::kBytes);
          TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) sum[r * N + n] = Row::multiply_add(sum[r * N + n], x, y[r]);
        }
      }
    }
    alignas(64) float t[kLanes];
    store(t, totals(sum));
    TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) __builtin_memcpy(s + r * kTileK + key, t + r * N, N * sizeof(float));
  }
}

// `keys` addresses in k, a multiple of kLanes of them (the last repeated). q: rows of kMaxHdim words, 0 past the head dim.
using Scores = void (*)(float* s, const char* const* k, int keys, const float* q, int rows, int hdim);

template <class Row> void scores(float* s, const char* const* k, int keys, const float* q, int rows, int hdim) {
  const int steps = (hdim + Row::kDims - 1) / Row::kDims;
  for (int key = 0; key < keys; key += kLanes) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) score_rows<Row, 4>(s + r * kTileK + key, k + key, q + r * kMaxHdim, steps);
    if (rows - r >= 2) {
      score_rows<Row, 2>(s + r * kTileK + key, k + key, q + r * kMaxHdim, steps);
      r += 2;
    }
    if (r < rows) score_rows<Row, 1>(s + r * kTileK + key, k + key, q + r * kMaxHdim, steps);
  }
}

// O[row][:] = alpha O[row][:] + sum_key P[row][key] V[key][:] for R rows and N pairs of registers.
template <class T, int R, int N>
TILEKILN_INLINE void value_rows(float* o, const char* const* v, i64 offset, int keys, const float* p,
                                const float* alpha) {
  vf sum[R][2 * N];
  TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
    const vf factor = broadcast(alpha[r]);
    TILEKILN_UNROLL(8) for (int i = 0; i < 2 * N; ++i) sum[r][i] = mul(load(o + r * kMaxHdim + i * kLanes), factor);
  }
  for (i64 key = 0; key < keys; ++key) {
    const char* row = v[key] + offset;
    vf x[R];
    TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) x[r] = broadcast(p[r * kTileK + key]);
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

template <class T> void values(float* o, const char* const* v, int keys, const float* p, const float* alpha, int rows,
                               int hdim) {
  const int pairs = (hdim + 2 * kLanes - 1) / (2 * kLanes);
  const auto group = [&]<int R, int N>(int r) __attribute__((always_inline)) {
    int i = 0;
    const auto step = [&]<int Count>() __attribute__((always_inline)) {
      value_rows<T, R, Count>(o + r * kMaxHdim + i * 2 * kLanes, v, i * 2 * kLanes * int(sizeof(T)), keys,
                              p + r * kTileK, alpha + r);
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
  int r = 0;
  for (; r + 4 <= rows; r += 4) group.template operator()<4, kRowAccumulators / 8>(r);
  if (rows - r >= 2) {
    group.template operator()<2, kRowAccumulators / 4>(r);
    r += 2;
  }
  if (r < rows) group.template operator()<1, 4>(r);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
