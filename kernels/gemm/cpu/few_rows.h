// SPDX-License-Identifier: MIT
// Few rows times packed panels, by fp32, as a layer that decodes: panels are read once, from end to end, as wide as they are, and widened on the
// way. For pairs of bf16, which nothing multiplies there, and for targets whose registers hold a part of a panel's columns alone, that would
// read lines of it apart. Sums are those of run_unit, bit for bit.
#pragma once

#ifdef __AVX512F__
#include "kernels/backends/cpu/avx512/horizontal.h"
#else
#include "kernels/backends/cpu/avx2/horizontal.h"
#endif
#include "kernels/gemm/cpu/scratch.h"
#include "kernels/gemm/cpu/shared.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Elements of a lane that lie together in panels of T.
template <class T> constexpr int kTogether = 1;
template <> constexpr int kTogether<bf16> = 2;

// A panel is unpacked once for 24; of fp32, which is not, four are multiplied as fast by blocks.
template <class T> constexpr int kFewRows = sizeof(T) == sizeof(float) ? 3 : 16;
constexpr int kFewBlock = 3;  // rows at a time: four take as long as two by two, and longer
constexpr int kFewChunk = sizeof(GemmScratch::a) / sizeof(float) / kFewRows<bf16> / 16 * 16;  // elements of a row of A
// Vectors of columns at a time for R rows: sums in half of the registers or more, at most a panel.
template <int R> constexpr int kFewVectors = [] {
  int n = matrix::kPanelLanes / kLanes;
  while (n * R > (kLanes == 16 ? 24 : 12)) n /= 2;
  return n;
}();

template <class T> TILEKILN_INLINE bool is_few(const matrix::Problem& p, const matrix::Unit& u) {
  return (kTogether<T> > 1 || kPanel < matrix::kPanelLanes) && p.b_panels == kTogether<T> && !p.a_columns &&
         u.m1 - u.m0 <= kFewRows<T>;
}

// sums[i kPanel rows + r kPanel + j]: column i kPanel + j of row r of R, out of `rows`.
template <int R, int N, class T>
TILEKILN_INLINE void few_sums(const char* a, i64 a_row, const T* b, i64 k, bool begins, float* sums, int rows) {
  constexpr int P = kTogether<T>;
  const auto at = [&](int r, int j) __attribute__((always_inline)) {
    const int column = j * kLanes;
    return sums + (column / kPanel * rows + r) * kPanel + column % kPanel;
  };
  vf sum[R][N];
  TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(16) for (int j = 0; j < N; ++j) sum[r][j] = begins ? zero() : load(at(r, j));
  }
  const auto add = [&]<int Some>(std::integral_constant<int, Some>) __attribute__((always_inline)) {
    TILEKILN_UNROLL(16) for (int j = 0; j < N; ++j) {
      vf x[P];
      if constexpr (P == 2)
        even_odd(b + 2 * j * kLanes, x[0], x[1]);
      else
        x[0] = widen(b + j * kLanes);
      TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
        TILEKILN_UNROLL(2) for (int i = 0; i < Some; ++i) {
          sum[r][j] = ComputeFp32::multiply_add(sum[r][j], x[i], load_word(a + r * a_row + 4 * i));
        }
      }
    }
  };
  for (; k >= P; k -= P, a += 4 * P, b += P * matrix::kPanelLanes) add(std::integral_constant<int, P>{});
  if (k > 0) add(std::integral_constant<int, 1>{});
  TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(16) for (int j = 0; j < N; ++j) store(at(r, j), sum[r][j]);
  }
}

// R rows times the columns of a panel from `first` on: all of them by a stretch of k, whose lines come from memory once, before the next.
constexpr i64 kFewStretch = 128;
template <int R, class T>
void few_rows(const char* a, i64 a_row, const T* b, i64 k_end, bool begins, float* sums, int rows, int first,
              int columns) {
  constexpr int kWide = kFewVectors<R>, kMost = kWide * kLanes;
  const i64 stretch = kMost < matrix::kPanelLanes ? kFewStretch : k_end;
  i64 k = 0;
  do {
    const i64 elements = least<i64>(k_end - k, stretch);
    for (int n = 0; n < columns;) {
      const T* const from = b + k * matrix::kPanelLanes + kTogether<T> * (first + n);
      float* const to = sums + n / kPanel * rows * kPanel;
      if ((first + n) % kMost == 0)
        few_sums<R, kWide>(a + k * 4, a_row, from, elements, begins && k == 0, to, rows), n += kMost;
      else
        few_sums<R, kBlockVectors>(a + k * 4, a_row, from, elements, begins && k == 0, to, rows), n += kPanel;
    }
    k += elements;
  } while (k < k_end);
}

template <class T> void run_few(const matrix::Problem& p, const matrix::Unit& u, GemmScratch& x) {
  const Finish finish = finish_of(p);
  const int rows = u.m1 - u.m0;
  constexpr int P = kTogether<T>;
  const i64 panel = (i64(p.k) + P - 1) / P * P * matrix::kPanelLanes;  // elements
  i64 k0 = 0;
  do {
    const i64 k = least<i64>(p.k - k0, kFewChunk);
    const char* a = (const char*)x.a;
    i64 a_row = kFewChunk * 4;
    if (p.a_words)
      a = (const char*)((const float*)p.a + (u.m0 - p.a_first) * p.lda + k0), a_row = p.lda * 4;
    else if (std::is_same_v<T, float>)
      a = (const char*)((const float*)p.a + u.m0 * p.lda + k0), a_row = p.lda * 4;
    else
      copy_rows_fp32<T>(x.a, a_row, (const T*)p.a + u.m0 * p.lda + k0, p.lda, rows, k);
    for (int n = u.n0; n < u.n1;) {
      const int first = n % matrix::kPanelLanes, columns = least(u.n1 - n, matrix::kPanelLanes - first);
      const T* const b = (const T*)p.b + n / matrix::kPanelLanes * panel + k0 * matrix::kPanelLanes;
      float* const sums = x.sums + i64(n - u.n0) * rows;
      for (int r = 0, groups = (rows + kFewBlock - 1) / kFewBlock; groups > 0; --groups) {
        const int some = (rows - r + groups - 1) / groups;  // 8 = 3 + 3 + 2
        const auto run = [&](auto few) {
          few(a + r * a_row, a_row, b, k, k0 == 0, sums + r * kPanel, rows, first, columns);
        };
        some == 1 ? run(few_rows<1, T>) : some == 2 ? run(few_rows<2, T>) : run(few_rows<3, T>);
        r += some;
      }
      n += columns;
    }
    k0 += k;
  } while (k0 < p.k);
  for (int n = u.n0; n < u.n1; n += kPanel)
    finish.block(p, x.sums + i64(n - u.n0) * rows, u.m0, n, rows, least(u.n1 - n, kPanel));
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
