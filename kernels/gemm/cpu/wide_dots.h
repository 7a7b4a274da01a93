// SPDX-License-Identifier: MIT
// Few rows times a column-major B whose elements are widened on the way: lanes run along K, as many sums at a time as half of the registers
// hold. Of dots.cpp alone.
#pragma once

#include <type_traits>

#ifdef __AVX512F__
#include "kernels/backends/cpu/avx512/horizontal.h"
#else
#include "kernels/backends/cpu/avx2/horizontal.h"
#endif
#include "kernels/backends/cpu/load.h"
#include "kernels/gemm/cpu/dots.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Parts of a row that follow one another, in the same order of both operands: of bf16 the even elements and then the odd ones.
template <class T> constexpr int kParts = 1;
template <> constexpr int kParts<bf16> = 2;
template <class T> TILEKILN_INLINE void widen_parts(const T* p, vf* x) { x[0] = widen(p); }
TILEKILN_INLINE void widen_parts(const bf16* p, vf* x) { even_odd(p, x[0], x[1]); }

// to[i kPanel + j] = row i of A times row j of B, A rows by B rows. One sum an element, whatever A and B: its bits do not depend on them.
template <class T, int A, int B>
TILEKILN_INLINE void wide_dots(const T* a, i64 a_row, const T* b, i64 b_row, i64 k_end, float* to) {
  static_assert(A * B <= kRowAccumulators);
  constexpr int P = kParts<T>, kStep = P * kLanes, kLine = 64 / sizeof(T) > kStep ? 64 / sizeof(T) : kStep;
  vf sum[kRowAccumulators];
  TILEKILN_UNROLL(16) for (int i = 0; i < kRowAccumulators; ++i) sum[i] = zero();
  const auto step = [&](i64 k, auto ahead) __attribute__((always_inline)) {
    vf y[A][P];
    TILEKILN_UNROLL(4) for (int i = 0; i < A; ++i) widen_parts(a + i * a_row + k, y[i]);
    TILEKILN_UNROLL(8) for (int j = 0; j < B; ++j) {
      if constexpr (ahead) __builtin_prefetch((const char*)(b + j * b_row + k) + kDotsAhead, 0, B > 2 ? 2 : 3);
      vf x[P];
      widen_parts(b + j * b_row + k, x);
      TILEKILN_UNROLL(2) for (int part = 0; part < P; ++part) {
        TILEKILN_UNROLL(4) for (int i = 0; i < A; ++i) sum[i * B + j] = fma(x[part], y[i][part], sum[i * B + j]);
      }
    }
  };
  i64 k = 0;
  for (; k + kLine <= k_end; k += kLine) {  // one prefetch a line
    step(k, std::true_type());
    TILEKILN_UNROLL(4) for (int i = kStep; i < kLine; i += kStep) step(k + i, std::false_type());
  }
  if constexpr (kStep < kLine)
    for (; k + kStep <= k_end; k += kStep) step(k, std::false_type());
  for (; k < k_end; k += kLanes) {
    const int left = k_end - k < kLanes ? int(k_end - k) : kLanes;
    vf y[A];
    TILEKILN_UNROLL(4) for (int i = 0; i < A; ++i) y[i] = widen_some(a + i * a_row + k, left);
    TILEKILN_UNROLL(8) for (int j = 0; j < B; ++j) {
      const vf x = widen_some(b + j * b_row + k, left);
      TILEKILN_UNROLL(4) for (int i = 0; i < A; ++i) sum[i * B + j] = fma(x, y[i], sum[i * B + j]);
    }
  }
  alignas(64) float all[kLanes];
  store(all, totals(sum));
  TILEKILN_UNROLL(4) for (int i = 0; i < A; ++i) {
    TILEKILN_UNROLL(8) for (int j = 0; j < B; ++j) to[i * kPanel + j] = all[i * B + j];
  }
}

// All rows times B rows of B.
template <class T, int B>
TILEKILN_INLINE void wide_dot_rows(const T* a, i64 a_row, int rows, const T* b, i64 b_row, i64 k, float* to) {
  int i = 0;
  if constexpr (4 * B <= kRowAccumulators)
    for (; i + 4 <= rows; i += 4) wide_dots<T, 4, B>(a + i * a_row, a_row, b, b_row, k, to + i * kPanel);
  if constexpr (2 * B <= kRowAccumulators)
    for (; i + 2 <= rows; i += 2) wide_dots<T, 2, B>(a + i * a_row, a_row, b, b_row, k, to + i * kPanel);
  for (; i < rows; ++i) wide_dots<T, 1, B>(a + i * a_row, a_row, b, b_row, k, to + i * kPanel);
}

template <class T> void run_wide_dots(const matrix::Problem& p, const matrix::Unit& u, GemmScratch& x) {
  const Finish finish = finish_of(p);
  const int rows = u.m1 - u.m0;
  const T* const a = (const T*)p.a + u.m0 * p.lda;
  float* const sums = x.sums;  // rows x kPanel
  // Rows of B for one, two or three, and more rows of A.
  constexpr int kMost = 8, kMore = kRowAccumulators / 2, kFew = kRowAccumulators / 4;
  for (int n = u.n0; n < u.n1; n += kPanel) {
    const int columns = least(u.n1 - n, kPanel);
    const T* const b = (const T*)p.b + n * p.ldb;
    int j = 0;
    if (rows == 1)
      for (; j + kMost <= columns; j += kMost)
        wide_dot_rows<T, kMost>(a, p.lda, rows, b + j * p.ldb, p.ldb, p.k, sums + j);
    if (rows <= 3)
      for (; j + kMore <= columns; j += kMore)
        wide_dot_rows<T, kMore>(a, p.lda, rows, b + j * p.ldb, p.ldb, p.k, sums + j);
    for (; j + kFew <= columns; j += kFew) wide_dot_rows<T, kFew>(a, p.lda, rows, b + j * p.ldb, p.ldb, p.k, sums + j);
    for (; j < columns; ++j) wide_dot_rows<T, 1>(a, p.lda, rows, b + j * p.ldb, p.ldb, p.k, sums + j);
    finish.block(p, sums, u.m0, n, rows, columns);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
