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
  // Lines of out that `last` writes, asked for while sums are still made.
  TILEKILN_INLINE void ask(const matrix::Problem& p, int m, int n, int rows) const {
    const char* line = (const char*)p.out + (m * p.out_row + n) * bytes;
    for (int r = 0; r < rows; ++r, line += p.out_row * bytes) {
      for (int i = 0; i < kPanel * bytes; i += 64) __builtin_prefetch(line + i, 1, 3);
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
