// SPDX-License-Identifier: MIT
// Functions that the objects of an engine call of each other: sums become out in finish.cpp, products of few rows are dots.cpp, those by groups of
// k groups.cpp, all else is kernels/gemm/gemm/cpu/panels.cpp. They compile side by side, each in less time than one of all.
#pragma once

#include "kernels/gemm/cpu/block.h"
#include "kernels/gemm/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// `sums` is rows x cols, kPanel floats a row, and may be written; (m, n) is where it lies in out.
using Epilogue = void (*)(const matrix::Problem&, float* sums, int m, int n, int rows, int cols);

// The steps from sums to out. as_they_are: they are out, but for their rounding to the dtype of out.
struct Finish {
  Epilogue before, activation;  // in place, or null
  Epilogue last;
  bool as_they_are;
  int bytes;  // of an element of out
  // Lines of out that `last` writes and of what is added to sums, asked for while they are still made.
  TILEKILN_INLINE void ask(const matrix::Problem& p, int m, int n, int rows) const {
    lines<1>(p.out, p.out_row, bytes, m, n, rows);
    ask_extras(p, m, n, rows);
  }
  // 3 to 4 % of a product with c of 1024 words.
  TILEKILN_INLINE void ask_extras(const matrix::Problem& p, int m, int n, int rows) const {
    const matrix::Extra* const extras[] = {&p.c, p.d, p.d + 1};
    for (const matrix::Extra* const extra : extras) {
      if (extra->data && extra->column == 1) lines<0>(extra->data, extra->row, bytes == 1 ? 4 : bytes, m, n, rows);
    }
  }
  template <int Written>
  static TILEKILN_INLINE void lines(const void* matrix, i64 row, int size, int m, int n, int rows) {
    const char* line = (const char*)matrix + (m * row + n) * size;
    for (int r = 0; r < rows; ++r, line += row * size) {
      for (int i = 0; i < kPanel * size; i += 64) __builtin_prefetch(line + i, Written, 3);
    }
  }
  TILEKILN_INLINE void block(const matrix::Problem& p, float* sums, int m, int n, int rows, int cols) const {
    if (before) before(p, sums, m, n, rows, cols);
    if (activation) activation(p, sums, m, n, rows, cols);
    last(p, sums, m, n, rows, cols);
  }
};
Finish finish_of(const matrix::Problem& p);

// Members of matrix::Engine.
void add_unit(const matrix::Problem& p, const matrix::Unit& u, const matrix::Parts& parts, void* scratch);
void quantise_out(const matrix::QuantisedRows& q, int row);
void combine(const matrix::Combined& c);
void groups_unit(const matrix::Grouped& g, const matrix::Unit& u, void* scratch);
void quantise_row(const matrix::Rows& rows, int row);

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
