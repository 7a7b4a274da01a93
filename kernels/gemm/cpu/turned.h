// SPDX-License-Identifier: MIT
// Some rows times a column-major B, as a linear layer of a batch: the product of the transposes. A, the smaller, is what becomes panels;
// rows of B are broadcast as they lie and read once, and blocks of out are turned before the epilogue. Sums are those of run_unit, bit
// for bit.
#pragma once

#include "kernels/gemm/cpu/unit.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Fewer rows are dots while caches hold B: from memory, rows that are read one after the other by 4 make it wait.
constexpr int kTurnedRows = 19, kTurnedRowsOfMemory = 13;
constexpr i64 kTurnedMemory = 16 << 20;
// A panel that is filled but for so many rows pays: they are multiplied too, where packing B takes as long as 10 to 19 rows.
constexpr int kTurnedMissing = 14;

// Tells it by the problem alone, as is_dots. 64 rows take 0.85 of the time that they take by packing B, 32 rows 0.77, 16 rows from memory
// 0.6 of dots.
inline bool is_turned(const matrix::Problem& p) {
#if defined(__AVX512BF16__)
  const bool pairs = p.dtype == matrix::Dtype::bf16 && !tilekiln::widens_bf16();
#else
  const bool pairs = TILEKILN_PAIRS && p.dtype == matrix::Dtype::bf16;
#endif
  const int word = p.dtype == matrix::Dtype::fp32 ? 1 : pairs ? 2 : 0;
  if (kTurnedColumns == 0 || word == 0 || !p.b_columns || p.b_panels || p.a_columns || p.k % word != 0) return false;
  const bool memory = i64(p.n) * p.k * (4 / word) > kTurnedMemory;
  const bool fills = p.m <= kPanel / 2 || p.m > kPanel - kTurnedMissing;
  return fills && p.m >= (memory ? kTurnedRowsOfMemory : kTurnedRows) && p.m <= kPanel && p.n > 2 * p.m;
}

template <class Compute>
void run_turned(const Stages& s, const matrix::Problem& p, const matrix::Unit& u, GemmScratch& x) {
  const Finish finish = finish_of(p);
  matrix::Problem turned = {};
  turned.dtype = p.dtype, turned.out_dtype = matrix::OutDtype::fp32;
  turned.m = p.n, turned.n = p.m, turned.k = p.k;
  turned.a = p.b, turned.lda = p.ldb;
  turned.b = p.a, turned.ldb = p.lda, turned.b_columns = true;
  turned.alpha = 1;
  turned.tile_m = p.tile_m, turned.tile_k = p.tile_k;
  turned.out_row = kPanel;
  for (int first = u.n0; first < u.n1; first += kTurnedColumns) {
    const int end = least(u.n1, first + kTurnedColumns);
    turned.out = x.turned - (i64(first) * kPanel + u.m0);
    run_unit<Compute>(s, turned, {first, end, u.m0, u.m1}, x);
    for (int m = u.m0; m < u.m1; m += kLanes) {
      const int rows = least(u.m1 - m, kLanes);
      for (int n = first; n < end; n += kPanel) {
        const int columns = least(end - n, kPanel);
        for (int j = 0; j < columns; j += kLanes) {
          vf r[kLanes];
          const float* const from = x.turned + i64(n + j - first) * kPanel + (m - u.m0);
          TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) r[i] = load(from + i * kPanel);
          transpose(r);
          TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) store(x.turned_block + i * kPanel + j, r[i]);
        }
        finish.block(p, x.turned_block, m, n, rows, columns);
      }
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
