// SPDX-License-Identifier: MIT
// Sums added up: of pieces along k, then the epilogue, which a product that was cut along k ends with; and whole rows by their factors.
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

void add_unit(const matrix::Problem& p, const matrix::Unit& u, const matrix::Parts& parts, void*) {
  const Finish finish = finish_of(p);
  alignas(64) float block[kPanel];
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

template <class Q, class T> void quantise_numbers(const matrix::QuantisedRows& q, int row, float largest) {
  const T* const from = (const T*)q.from + row * q.from_row;
  Q* const to = (Q*)q.to + row * q.to_row;
  vf top = zero(), bad = zero();
  for (int j = 0; j < q.columns; j += kLanes) {
    const vf v = widen_some(from + j, q.columns - j);
    top = max(top, abs(v)), bad = fma(v, zero(), bad);
  }
  const float most = highest(top);
  const bool finite = total(bad) == 0;
  if (!finite || most < kLeast) {
    __builtin_memset(to, 0, q.columns);
    q.scale[row] = finite ? 0 : __builtin_nanf("");
    return;
  }
  const vf by = broadcast(largest / most);
  for (int j = 0; j < q.columns; j += kLanes)
    narrow_some(to + j, mul(widen_some(from + j, q.columns - j), by), q.columns - j);
  q.scale[row] = most / largest;
}
template <class T> void quantise_from(const matrix::QuantisedRows& q, int row) {
  q.fp8 ? quantise_numbers<CalledFp8, T>(q, row, 448) : quantise_numbers<SaturatedInt8, T>(q, row, 127);
}
void quantise_out(const matrix::QuantisedRows& q, int row) {
  if (q.dtype == matrix::Dtype::fp32) return quantise_from<float>(q, row);
  q.dtype == matrix::Dtype::fp16 ? quantise_from<fp16>(q, row) : quantise_from<bf16>(q, row);
}

template <class T> void combine_row(const matrix::Combined& c) {
  T* const out = (T*)c.out;
  for (int j = 0; j < c.columns; j += kLanes) {
    const int left = c.columns - j;
    vf sum = zero();
    for (int i = 0; i < c.count; ++i)
      sum = fma(widen_some(c.from + c.rows[i] * c.from_row + j, left), broadcast(c.factors[i]), sum);
    narrow_some(out + j, sum, left);
  }
}
void combine(const matrix::Combined& c) {
  if (c.dtype == matrix::OutDtype::fp32) return combine_row<float>(c);
  if (c.dtype == matrix::OutDtype::fp16) return combine_row<fp16>(c);
  combine_row<bf16>(c);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
