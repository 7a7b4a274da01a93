// Sums of pieces along k added up, then the epilogue: what a product that was cut along k ends with.
#pragma once

#include "kernels/gemm/cpu/epilogue.h"
#include "kernels/gemm/cpu/scratch.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

TILEKILN_INLINE float plus(float a, float b) { return a + b; }
TILEKILN_INLINE uint32_t plus(uint32_t a, uint32_t b) { return a + b; }

// to[j] = the parts one after the other, or the sum of the first half of them and that of the second. Modulo 2^32 of integers.
template <class Word> void add_parts(Word* to, const float* from, i64 step, int count, bool tree, int columns) {
  Word row[kPanel];
  if (count == 1) return (void)__builtin_memcpy(to, from, columns * sizeof *to);
  if (tree) {
    const int half = (count + 1) / 2;
    add_parts(to, from, step, half, true, columns);
    add_parts(row, from + half * step, step, count - half, true, columns);
    for (int j = 0; j < columns; ++j) to[j] = plus(to[j], row[j]);
    return;
  }
  __builtin_memcpy(to, from, columns * sizeof *to);
  for (int i = 1; i < count; ++i) {
    __builtin_memcpy(row, from + i * step, columns * sizeof *row);
    for (int j = 0; j < columns; ++j) to[j] = plus(to[j], row[j]);
  }
}

inline void add_unit(const matrix::Problem& p, const matrix::Unit& u, const matrix::Parts& parts, void* scratch) {
  const Finish finish = finish_of(p);
  float* const block = ((GemmScratch*)scratch)->block;
  for (int n = u.n0; n < u.n1; n += kPanel) {
    const int columns = least(u.n1 - n, kPanel);
    for (int m = u.m0; m < u.m1; ++m) {
      const float* from = parts.sums + (m - u.m0) * parts.row + (n - u.n0);
      if (p.dtype == matrix::Dtype::int8) {
        uint32_t words[kPanel];
        add_parts(words, from, parts.step, parts.count, parts.tree, columns);
        __builtin_memcpy(block, words, columns * sizeof *block);
      } else {
        add_parts(block, from, parts.step, parts.count, parts.tree, columns);
      }
      finish.block(p, block, m, n, 1, columns);
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
