// Rows of silu(gate) up and of its gradients. With s = sigmoid(gate):
//   y = gate s up      dgate = dy up s (1 + gate (1 - s))      dup = dy gate s
#pragma once

#include "kernels/backends/cpu/sigmoid.h"
#include "kernels/backends/cpu/vectors.h"
#include "kernels/norm/gated.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

template <class T> void gated_rows(const norm::Gated& a, long long first, long long last) {
  for (long long m = first; m < last; ++m) {
    const T *gate = (const T*)a.gate + m * a.gate_row, *up = (const T*)a.up + m * a.up_row;
    T* y = (T*)a.y + m * a.y_row;
    vectors(a.columns, [&](int j, int, int left) __attribute__((always_inline)) {
      narrow_some(y + j, mul(silu(widen_some(gate + j, left)), widen_some(up + j, left)), left);
    });
  }
}

template <class T> void gated_gradients(const norm::Gated& a, long long first, long long last) {
  const vf one = broadcast(1);
  for (long long m = first; m < last; ++m) {
    const T *gate = (const T*)a.gate + m * a.gate_row, *up = (const T*)a.up + m * a.up_row;
    const T* dy = (const T*)a.dy + m * a.dy_row;
    T *dgate = (T*)a.dgate + m * a.dgate_row, *dup = (T*)a.dup + m * a.dup_row;
    vectors(a.columns, [&](int j, int, int left) __attribute__((always_inline)) {
      const vf g = silu_argument(widen_some(gate + j, left)), d = widen_some(dy + j, left), s = sigmoid(g);
      const vf slope = mul(s, fma(g, sub(one, s), one)), of_up = mul(d, widen_some(up + j, left));
      narrow_some(dgate + j, mul(of_up, slope), left);
      narrow_some(dup + j, mul(d, mul(g, s)), left);
    });
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
