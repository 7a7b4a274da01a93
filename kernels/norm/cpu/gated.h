// Rows of silu(gate) up and of its gradients. With s = sigmoid(gate):
//   y = gate s up      dgate = dy up s (1 + gate (1 - s))      dup = dy gate s
#pragma once

#include "kernels/backends/cpu/sigmoid.h"
#include "kernels/backends/cpu/twos.h"
#include "kernels/norm/gated.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

template <class T> void gated_rows(const norm::Gated& a, long long first, long long last) {
  for (long long m = first; m < last; ++m) {
    const T *gate = (const T*)a.gate + m * a.gate_row, *up = (const T*)a.up + m * a.up_row;
    T* y = (T*)a.y + m * a.y_row;
    twos(a.columns, [&](int j, int, int left) __attribute__((always_inline)) {
      const Two g = widen_two<T>(gate + j, left);
      narrow_two<T>(y + j, mul(Two{silu(g.a), silu(g.b)}, widen_two<T>(up + j, left)), left);
    });
  }
}

template <class T> void gated_gradients(const norm::Gated& a, long long first, long long last) {
  const vf one = broadcast(1);
  for (long long m = first; m < last; ++m) {
    const T *gate = (const T*)a.gate + m * a.gate_row, *up = (const T*)a.up + m * a.up_row;
    const T* dy = (const T*)a.dy + m * a.dy_row;
    T *dgate = (T*)a.dgate + m * a.dgate_row, *dup = (T*)a.dup + m * a.dup_row;
    twos(a.columns, [&](int j, int, int left) __attribute__((always_inline)) {
      const Two gates = widen_two<T>(gate + j, left), d = widen_two<T>(dy + j, left);
      const Two of_up = mul(d, widen_two<T>(up + j, left));
      const auto slopes = [&](vf gate_half, vf d_half, vf& of_gate, vf& of_up_half) __attribute__((always_inline)) {
        const vf g = silu_argument(gate_half), s = sigmoid(g);
        of_gate = mul(of_up_half, mul(s, fma(g, sub(one, s), one)));
        of_up_half = mul(d_half, mul(g, s));
      };
      Two for_gate, for_up = of_up;
      slopes(gates.a, d.a, for_gate.a, for_up.a);
      slopes(gates.b, d.b, for_gate.b, for_up.b);
      narrow_two<T>(dgate + j, for_gate, left);
      narrow_two<T>(dup + j, for_up, left);
    });
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
