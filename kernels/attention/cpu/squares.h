// SPDX-License-Identifier: MIT
// The forward's two products where the ISA multiplies squares (BFMMLA): two rows of K, or of V^T, by two queries by two words. Words of Q
// and of P become squares where they lie: rows 2i and 2i + 1 of a vector of queries hold the squares of its first and second two. Sums
// are bit for bit those of one word after the other, so blocks may take either way.
#pragma once

#include "kernels/attention/cpu/tile.h"
#include "kernels/backends/cpu/compute.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

#if TILEKILN_SQUARES

template <class Compute> constexpr bool kSquares = Compute::kWord == 2;

// The last of an odd number of words meets zeros.
TILEKILN_INLINE void make_squares(float* to, int words, int vectors) {
  for (i64 w = 0; w < words; w += 2) {
    for (int j = 0; j < vectors; ++j) {
      float* const at = to + w * kTileQ + j * kLanes;
      const vf a = load(at), b = w + 1 < words ? load(at + kTileQ) : zero();
      store(at, first_square(a, b));
      store(at + kTileQ, second_square(a, b));
    }
  }
}

template <int P, int N> struct Squares {
  vf sum[P][2 * N];  // of pairs of rows

  TILEKILN_INLINE Squares() {
    TILEKILN_UNROLL(8) for (int i = 0; i < P; ++i) {
      TILEKILN_UNROLL(8) for (int j = 0; j < 2 * N; ++j) sum[i][j] = zero();
    }
  }
  TILEKILN_INLINE void add(const vf (&rows)[P], const float* columns) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) {
      const vf first = load(columns + j * kLanes), second = load(columns + kTileQ + j * kLanes);
      TILEKILN_UNROLL(8) for (int i = 0; i < P; ++i) {
        sum[i][2 * j] = dot_square_pairs(sum[i][2 * j], first, rows[i]);
        sum[i][2 * j + 1] = dot_square_pairs(sum[i][2 * j + 1], second, rows[i]);
      }
      before_loads(sum[0][2 * j], sum[P - 1][2 * j + 1]);
    }
  }
  TILEKILN_INLINE vf row(int r, int j) const {
    const vf first = sum[r / 2][2 * j], second = sum[r / 2][2 * j + 1];
    return r % 2 == 0 ? first_row(first, second) : second_row(first, second);
  }
};

// score_rows of an even number of words, whose Q is in squares.
template <int R, int N, class Rows>
TILEKILN_INLINE void score_squares(Rows rows, int words, const float* q, float* s, vf* maximum) {
  static_assert(R % 2 == 0);
  Squares<R / 2, N> squares;
  TILEKILN_UNROLL(2) for (i64 w = 0; w < words; w += 2) {
    vf y[R / 2];
    TILEKILN_UNROLL(8)
    for (int i = 0; i < R / 2; ++i) y[i] = low_words(load_two(rows.at(2 * i)), load_two(rows.at(2 * i + 1)));
    rows.next_word(), rows.next_word();
    squares.add(y, q + w * kTileQ);
  }
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) {
      const vf x = squares.row(r, j);
      store(s + r * kTileQ + j * kLanes, x);
      maximum[j] = max(maximum[j], x);
    }
  }
}

// value_rows of the words [0, words), whose P is in squares.
template <int R, int N>
TILEKILN_INLINE void value_squares(const float* p, const float* v, i64 stride, int words, float* o, const vf* alpha) {
  static_assert(R % 2 == 0);
  Squares<R / 2, N> squares;
  const auto squares_of = [](vf(&y)[R / 2], const float* a, const float* b) __attribute__((always_inline)) {
    TILEKILN_UNROLL(4) for (int r = 0; r + 4 <= R; r += 4) {
      const vf x = load_unaligned(a + r), next = load_unaligned(b + r);
      y[r / 2] = first_square(x, next), y[r / 2 + 1] = second_square(x, next);
    }
    if constexpr (R % 4 != 0) y[R / 2 - 1] = first_square(load_two(a + R - 2), load_two(b + R - 2));
  };
  vf y[R / 2];
  i64 w = 0;
  TILEKILN_UNROLL(2) for (; w + 2 <= words; w += 2, v += 2 * stride) {
    squares_of(y, v, v + stride);
    squares.add(y, p + w * kTileQ);
  }
  if (w < words) {
    constexpr float none[R] = {};
    squares_of(y, v, none);
    squares.add(y, p + w * kTileQ);
  }
  TILEKILN_UNROLL(16) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(8) for (int j = 0; j < N; ++j) {
      float* const to = o + r * kTileQ + j * kLanes;
      const vf x = squares.row(r, j);
      store(to, alpha ? fma(load(to), alpha[j], x) : x);
    }
  }
}

#else  // declared for branches that are not taken

template <class Compute> constexpr bool kSquares = false;
void make_squares(float*, int, int);
template <int R, int N, class Rows> void score_squares(Rows, int, const float*, float*, vf*);
template <int R, int N> void value_squares(const float*, const float*, i64, int, float*, const vf*);

#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
