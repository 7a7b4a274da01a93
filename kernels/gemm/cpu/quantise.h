// SPDX-License-Identifier: MIT
// Rows that become int8 before they are multiplied, with a factor and the sums that products by groups of k want.
#pragma once

#include "kernels/backends/cpu/load.h"
#include "kernels/gemm/cpu/scratch.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// A row of int8 and its factor: max |x| / 127, NaN where the row holds a NaN or an infinity.
template <class T> void quantise(const T* x, const float* by_column, int columns, signed char* to, float* scale) {
  const auto get = [=](int k) __attribute__((always_inline)) {
    const vf v = widen_some(x + k, columns - k);
    return by_column ? mul(v, widen_some(by_column + k, columns - k)) : v;
  };
  vf top = zero(), bad = zero();
  for (int k = 0; k < columns; k += kLanes) {
    const vf v = get(k);
    top = max(top, abs(v)), bad = fma(v, zero(), bad);
  }
  alignas(64) float t[kLanes], z[kLanes];
  store(t, top), store(z, bad);
  float most = 0, nan = 0;
  for (int i = 0; i < kLanes; ++i) most = t[i] > most ? t[i] : most, nan += z[i];
  if (nan != 0 || most < kLeast) {
    __builtin_memset(to, 0, columns);
    *scale = nan != 0 ? __builtin_nanf("") : 0;
    return;
  }
  const vf by = broadcast(127 / most);
  for (int k = 0; k < columns; k += kLanes) narrow_some(to + k, mul(get(k), by), columns - k);
  *scale = most / 127;
}
void quantise_row(const matrix::Rows& rows, int row) {
  signed char* const to = rows.to + i64(row) * rows.columns;
  const auto of = [&](auto* from) {
    quantise(from + row * rows.from_row, rows.column_scale, rows.columns, to, rows.scale + row);
  };
  if (rows.dtype == matrix::Dtype::fp32) of((const float*)rows.from);
  if (rows.dtype == matrix::Dtype::fp16) of((const fp16*)rows.from);
  if (rows.dtype == matrix::Dtype::bf16) of((const bf16*)rows.from);
  const int8* p = rows.dtype == matrix::Dtype::int8 ? (const int8*)rows.from + row * rows.from_row : to;
  int* sums = rows.sums + row * i64((rows.columns + matrix::kSummed - 1) / matrix::kSummed);
  for (int k = 0; k < rows.columns; k += matrix::kSummed) {
    int total = 0;
    for (int i = k; i < least(k + matrix::kSummed, rows.columns); ++i) total += p[i];
    *sums++ = total;
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
