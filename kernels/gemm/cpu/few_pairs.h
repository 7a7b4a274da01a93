// SPDX-License-Identifier: MIT
// Few rows times packed panels of pairs of bf16, by fp32, as a layer that decodes where no instruction multiplies pairs: they are widened on
// the way, nothing is unpacked. Sums are those of run_unit, bit for bit.
#pragma once

#ifdef __AVX512F__
#include "kernels/backends/cpu/avx512/horizontal.h"
#else
#include "kernels/backends/cpu/avx2/horizontal.h"
#endif
#include "kernels/gemm/cpu/scratch.h"
#include "kernels/gemm/cpu/shared.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kPairRows = 16;  // of 24 a panel is unpacked once for all
constexpr int kPairBlock = 3;  // rows at a time: four take as long as two by two, and longer
constexpr int kPairChunk = sizeof(GemmScratch::a) / sizeof(float) / kPairRows / 16 * 16;  // elements of a row of A
// Vectors of columns at a time for R rows: sums in half of the registers or more, at most a panel.
template <int R> constexpr int kPairVectors = [] {
  int n = matrix::kPanelLanes / kLanes;
  while (n * R > (kLanes == 16 ? 24 : 12)) n /= 2;
  return n;
}();

TILEKILN_INLINE bool is_few_pairs(const matrix::Problem& p, const matrix::Unit& u) {
  return p.b_panels == 2 && !p.a_columns && u.m1 - u.m0 <= kPairRows;
}

// sums[i kPanel rows + r kPanel + j]: column i kPanel + j of row r of R, out of `rows`.
template <int R, int N>
TILEKILN_INLINE void few_pairs(const char* a, i64 a_row, const bf16* b, i64 k, bool begins, float* sums, int rows) {
  const auto at = [&](int r, int j) __attribute__((always_inline)) {
    const int column = j * kLanes;
    return sums + (column / kPanel * rows + r) * kPanel + column % kPanel;
  };
  vf sum[R][N];
  TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(16) for (int j = 0; j < N; ++j) sum[r][j] = begins ? zero() : load(at(r, j));
  }
  for (; k >= 2; k -= 2, a += 8, b += 2 * matrix::kPanelLanes) {
    TILEKILN_UNROLL(16) for (int j = 0; j < N; ++j) {
      vf even, odd;
      even_odd(b + 2 * j * kLanes, even, odd);
      TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
        sum[r][j] = ComputeFp32::multiply_add(sum[r][j], even, load_word(a + r * a_row));
        sum[r][j] = ComputeFp32::multiply_add(sum[r][j], odd, load_word(a + r * a_row + 4));
      }
    }
  }
  if (k > 0) {
    TILEKILN_UNROLL(16) for (int j = 0; j < N; ++j) {
      vf even, odd;
      even_odd(b + 2 * j * kLanes, even, odd);
      TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
        sum[r][j] = ComputeFp32::multiply_add(sum[r][j], even, load_word(a + r * a_row));
      }
    }
  }
  TILEKILN_UNROLL(4) for (int r = 0; r < R; ++r) {
    TILEKILN_UNROLL(16) for (int j = 0; j < N; ++j) store(at(r, j), sum[r][j]);
  }
}

// R rows times the columns of a panel from `first` on: all of them by a stretch of k, whose lines come from memory once, before the next.
constexpr i64 kPairStretch = 128;
template <int R>
void few_pair_rows(const char* a, i64 a_row, const bf16* b, i64 k_end, bool begins, float* sums, int rows, int first,
                   int columns) {
  constexpr int kWide = kPairVectors<R>, kMost = kWide * kLanes;
  const i64 stretch = kMost < matrix::kPanelLanes ? kPairStretch : k_end;
  i64 k = 0;
  do {
    const i64 elements = least<i64>(k_end - k, stretch);
    for (int n = 0; n < columns;) {
      const bf16* const from = b + k * matrix::kPanelLanes + 2 * (first + n);
      float* const to = sums + n / kPanel * rows * kPanel;
      if ((first + n) % kMost == 0)
        few_pairs<R, kWide>(a + k * 4, a_row, from, elements, begins && k == 0, to, rows), n += kMost;
      else
        few_pairs<R, kBlockVectors>(a + k * 4, a_row, from, elements, begins && k == 0, to, rows), n += kPanel;
    }
    k += elements;
  } while (k < k_end);
}

template <class T> void run_few_pairs(const matrix::Problem& p, const matrix::Unit& u, GemmScratch& x) {
  const Finish finish = finish_of(p);
  const int rows = u.m1 - u.m0;
  const i64 panel = (i64(p.k) + 1) / 2 * 2 * matrix::kPanelLanes;  // elements
  i64 k0 = 0;
  do {
    const i64 k = least<i64>(p.k - k0, kPairChunk);
    const char* a = (const char*)x.a;
    i64 a_row = kPairChunk * 4;
    if (p.a_words)
      a = (const char*)((const float*)p.a + (u.m0 - p.a_first) * p.lda + k0), a_row = p.lda * 4;
    else
      copy_rows_fp32<T>(x.a, a_row, (const T*)p.a + u.m0 * p.lda + k0, p.lda, rows, k);
    for (int n = u.n0; n < u.n1;) {
      const int first = n % matrix::kPanelLanes, columns = least(u.n1 - n, matrix::kPanelLanes - first);
      const bf16* const b = (const bf16*)p.b + n / matrix::kPanelLanes * panel + k0 * matrix::kPanelLanes;
      float* const sums = x.sums + i64(n - u.n0) * rows;
      for (int r = 0, groups = (rows + kPairBlock - 1) / kPairBlock; groups > 0; --groups) {
        const int some = (rows - r + groups - 1) / groups;  // 8 = 3 + 3 + 2
        const auto run = [&](auto few) {
          few(a + r * a_row, a_row, b, k, k0 == 0, sums + r * kPanel, rows, first, columns);
        };
        some == 1 ? run(few_pair_rows<1>) : some == 2 ? run(few_pair_rows<2>) : run(few_pair_rows<3>);
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
