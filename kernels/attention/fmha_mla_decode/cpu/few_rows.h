// SPDX-License-Identifier: MIT
// Tiles of one vector of rows, as 16 heads of one query are. With a lane a row every factor of K and V would meet one vector, so that each
// product costs a load. Here four words of a key meet four vectors of 4 rows x 4 words, and O has its lanes along the head dim.
#pragma once

#include "kernels/attention/cpu/microkernel.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using StoreRow = void (*)(void* to, const float* o, float factor, int hdim);

template <class T> void store_row(void* to, const float* o, float factor, int hdim) {
  for (int d = 0; d < hdim; d += kLanes) narrow_some((T*)to + d, mul(load(o + d), broadcast(factor)), hdim - d);
}

// O[r][:] = alpha[r] O[r][:] + sum_w P[w][r] V[w][:] of the columns of N vectors.
template <class Compute, int R, int N>
TILEKILN_INLINE void row_values(const float* p, const float* v, i64 v_stride, int words, float* o, i64 o_stride,
                                const float* alpha) {
  vf sum[R][N];
  TILEKILN_UNROLL(8) for (int r = 0; r < R; ++r) { TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) sum[r][j] = zero(); }
  TILEKILN_UNROLL(2) for (i64 w = 0; w < words; ++w) {
    vf x[N];
    TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) x[j] = load_unaligned(v + w * v_stride + j * kLanes);
    TILEKILN_UNROLL(8) for (int r = 0; r < R; ++r) {
      const word y = load_word(p + w * kTileQ + r);
      TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) sum[r][j] = Compute::multiply_add(sum[r][j], x[j], y);
    }
  }
  TILEKILN_UNROLL(8) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(4) for (int j = 0; j < N; ++j) {
      float* const to = o + r * o_stride + j * kLanes;
      store(to, fma(load(to), broadcast(alpha[r]), sum[r][j]));
    }
  }
}

constexpr int kFewColumns = 2 * kLanes;  // of a step of every_row_value

// The rows [row, rows) and `columns` columns, in steps. step(): once a step.
template <class Compute, class Step>
TILEKILN_INLINE void every_row_value(int row, int rows, int columns, const float* p, const float* v, i64 v_stride,
                                     int words, float* o, i64 o_stride, const float* alpha, Step&& step) {
  for (int d = 0; d < columns; d += kFewColumns) {
    const auto group = [&]<int R>(int r) __attribute__((always_inline)) {
      row_values<Compute, R, 2>(p + r, v + d, v_stride, words, o + r * o_stride + d, o_stride, alpha + r);
    };
    int r = row;
    for (; r + 8 <= rows; r += 8) group.template operator()<8>(r);
    for (; r + 4 <= rows; r += 4) group.template operator()<4>(r);
    for (; r < rows; ++r) group.template operator()<1>(r);
    step();
  }
}

#if defined(__AVX512BW__)
constexpr bool kFewRows = true;
constexpr int kFewPassWords = 288;  // of Q: 18 KB

TILEKILN_INLINE vf four_words(const char* p) { return {_mm512_broadcast_f32x4(_mm_loadu_ps((const float*)p))}; }

// Q^T of one vector of rows as fours: word 4 g + i of row 4 r + t to lane 4 r + i of vector t of group g.
inline void make_fours(float* q, int words) {
  for (i64 g = 0; g < (words + 3) / 4; ++g) {
    vf x[4];
    for (int i = 0; i < 4; ++i) x[i] = load(q + (4 * g + i) * kTileQ);
    for (int t = 0; t < 4; ++t) {
      float* const to = q + g * 4 * kLanes + t * kLanes;
      for (int r = 0; r < 4; ++r) {
        for (int i = 0; i < 4; ++i) to[4 * r + i] = ((const float*)&x[i])[4 * r + t];
      }
    }
  }
}

// The sums of each four lanes of four vectors: of vector t and lanes 4 r to 4 r + 3 in lane 4 r + t.
TILEKILN_INLINE vf sums_of_fours(const vf* a) {
  const auto twos = [](vf x, vf y) {
    return _mm512_add_ps(_mm512_unpacklo_ps(x.v, y.v), _mm512_unpackhi_ps(x.v, y.v));
  };
  const __m512d low = _mm512_castps_pd(twos(a[0], a[1])), high = _mm512_castps_pd(twos(a[2], a[3]));
  return {
      _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(low, high)), _mm512_castpd_ps(_mm512_unpackhi_pd(low, high)))};
}

// S of `count` keys, a multiple of 4, for one vector of rows whose Q is in fours; rows of K have a multiple of 4 words.
template <class Compute, class Step>
TILEKILN_INLINE void score_fours(const Keys& keys, int count, int words, const float* q, float* s, Step&& step) {
  for (int word = 0; word < words; word += kFewPassWords) {
    const int these = words - word < kFewPassWords ? words - word : kFewPassWords;
    for (int key = 0; key < count; key += 4) {
      const char* const k = keys.base + key * keys.stride + i64(word) * 4;
      const float* x = q + i64(word) * kLanes;
      vf sum[4][4];
      TILEKILN_UNROLL(4) for (int r = 0; r < 4; ++r) {
        TILEKILN_UNROLL(4) for (int t = 0; t < 4; ++t) sum[r][t] = zero();
      }
      TILEKILN_UNROLL(2) for (i64 w = 0; w < these; w += 4, x += 4 * kLanes) {
        vf columns[4];
        TILEKILN_UNROLL(4) for (int t = 0; t < 4; ++t) columns[t] = load(x + t * kLanes);
        TILEKILN_UNROLL(4) for (int r = 0; r < 4; ++r) {
          const vf y = four_words(k + r * keys.stride + w * 4);
          TILEKILN_UNROLL(4) for (int t = 0; t < 4; ++t) sum[r][t] = Compute::multiply_add(sum[r][t], columns[t], y);
        }
      }
      TILEKILN_UNROLL(4) for (int r = 0; r < 4; ++r) {
        float* const to = s + (key + r) * kTileQ;
        const vf all = sums_of_fours(sum[r]);
        store(to, word == 0 ? all : add(load(to), all));
      }
      step();
    }
  }
}

#else  // declared for branches that are not taken

constexpr bool kFewRows = false;
constexpr int kFewPassWords = 288;
void make_fours(float*, int);
template <class Compute, class Step> void score_fours(const Keys&, int, int, const float*, float*, Step&&);

#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
