// SPDX-License-Identifier: MIT
// Derivatives of the norms. With z = (x - mean) inverse, g = dy gamma and means over a row:
//   dx = inverse (g - mean(g) - z mean(g z))      (rmsnorm2d: z = x inverse, no mean(g))
//   dgamma = sum of dy z over rows, dbeta = sum of dy
#pragma once

#include "kernels/backends/cpu/load.h"
#include "kernels/backends/cpu/vectors.h"
#include "kernels/norm/backward_engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

template <class T, bool kLayer> void backward_part(const norm::Backward& a, long long part) {
  const long long first = part * a.part_rows;
  const long long last = first + a.part_rows < a.rows ? first + a.part_rows : a.rows;
  float *dgamma = a.sums + 2 * part * a.columns, *dbeta = dgamma + a.columns;
  __builtin_memset(dgamma, 0, 2 * sizeof(float) * a.columns);
  const T* gamma = (const T*)a.gamma;
  for (long long m = first; m < last; ++m) {
    const T *dy = (const T*)a.dy + m * a.dy_row, *x = (const T*)a.x + m * a.x_row;
    T* dx = (T*)a.dx + m * a.dx_row;
    const vf inverse = broadcast(a.inverse[m]), mean = broadcast(kLayer ? a.mean[m] : 0);
    const auto z_at = [&](int j, int left) __attribute__((always_inline)) {
      const vf v = widen_some(x + j, left);
      return mul(kLayer ? sub(v, mean) : v, inverse);
    };
    vf along[4] = {zero(), zero(), zero(), zero()}, sum[4] = {zero(), zero(), zero(), zero()};
    vectors(a.columns, [&](int j, int i, int left) __attribute__((always_inline)) {
      const vf d = widen_some(dy + j, left), z = z_at(j, left);
      const vf g = mul(d, widen_some(gamma + j, left));  // 0 past the row
      along[i] = fma(g, z, along[i]);
      narrow_some(dgamma + j, fma(d, z, widen_some(dgamma + j, left)), left);
      if constexpr (kLayer) {
        sum[i] = add(sum[i], g);
        narrow_some(dbeta + j, add(d, widen_some(dbeta + j, left)), left);
      }
    });
    const float columns = float(a.columns);
    const vf mean_gz = broadcast(total(add(add(along[0], along[1]), add(along[2], along[3]))) / columns);
    const vf mean_g = broadcast(kLayer ? total(add(add(sum[0], sum[1]), add(sum[2], sum[3]))) / columns : 0);
    vectors(a.columns, [&](int j, int, int left) __attribute__((always_inline)) {
      const vf g = mul(widen_some(dy + j, left), widen_some(gamma + j, left)), z = z_at(j, left);
      narrow_some(dx + j, mul(inverse, sub(kLayer ? sub(g, mean_g) : g, mul(z, mean_gz))), left);
    });
  }
}

template <class T> void backward_join(const norm::Backward& a, int first, int last) {
  for (int which = 0; which < 2; ++which) {
    T* to = (T*)(which == 0 ? a.dgamma : a.dbeta);
    if (!to) continue;
    for (int j = first; j < last; j += kLanes) {
      const int left = last - j;
      vf sum = zero();
      for (long long part = 0; part < a.parts; ++part)
        sum = add(sum, widen_some(a.sums + (2 * part + which) * a.columns + j, left));
      narrow_some(to + j, sum, left);
    }
  }
}

// Functions by dtype: fp32, fp16, bf16.
template <bool kLayer>
constexpr norm::BackwardEngine backward_engine = {
    {backward_part<float, kLayer>, backward_part<fp16, kLayer>, backward_part<bf16, kLayer>},
    {backward_join<float>, backward_join<fp16>, backward_join<bf16>}};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
