// SPDX-License-Identifier: MIT
// Rows of act(gate) up and of its gradients, act silu or gelu:
//   y = act(gate) up      dgate = dy up act'(gate)      dup = dy act(gate)
#pragma once

#include "kernels/backends/cpu/gelu.h"
#include "kernels/backends/cpu/twos.h"
#include "kernels/norm/gated.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Activations: of a vector, and with its derivative.
struct Silu {
  static TILEKILN_INLINE vf of(vf x) { return silu(x); }
  static TILEKILN_INLINE Sloped sloped(vf x) {
    const vf g = silu_argument(x), s = sigmoid(g), one = broadcast(1);
    return {mul(g, s), mul(s, fma(g, sub(one, s), one))};
  }
};
struct Gelu {
  static TILEKILN_INLINE vf of(vf x) { return gelu(x); }
  static TILEKILN_INLINE Sloped sloped(vf x) { return gelu_sloped(x); }
};
struct GeluTanh {
  static TILEKILN_INLINE vf of(vf x) { return gelu_tanh(x); }
  static TILEKILN_INLINE Sloped sloped(vf x) { return gelu_tanh_sloped(x); }
};

template <class Act, class T> void gated_rows(const norm::Gated& a, long long first, long long last) {
  for (long long m = first; m < last; ++m) {
    const T *gate = (const T*)a.gate + m * a.gate_row, *up = (const T*)a.up + m * a.up_row;
    T* y = (T*)a.y + m * a.y_row;
    twos(a.columns, [&](int j, int, int left) __attribute__((always_inline)) {
      const Two g = widen_two<T>(gate + j, left);
      narrow_two<T>(y + j, mul(Two{Act::of(g.a), Act::of(g.b)}, widen_two<T>(up + j, left)), left);
    });
  }
}

template <class Act, class T> void gated_gradients(const norm::Gated& a, long long first, long long last) {
  for (long long m = first; m < last; ++m) {
    const T *gate = (const T*)a.gate + m * a.gate_row, *up = (const T*)a.up + m * a.up_row;
    const T* dy = (const T*)a.dy + m * a.dy_row;
    T *dgate = (T*)a.dgate + m * a.dgate_row, *dup = (T*)a.dup + m * a.dup_row;
    twos(a.columns, [&](int j, int, int left) __attribute__((always_inline)) {
      const Two gates = widen_two<T>(gate + j, left), d = widen_two<T>(dy + j, left);
      const Two of_up = mul(d, widen_two<T>(up + j, left));
      const Sloped low = Act::sloped(gates.a), high = Act::sloped(gates.b);
      narrow_two<T>(dgate + j, mul(of_up, Two{low.slope, high.slope}), left);
      narrow_two<T>(dup + j, mul(d, Two{low.value, high.value}), left);
    });
  }
}

// gelu, by its tanh or not.
template <class T> void gelu_gated_rows(const norm::Gated& a, long long first, long long last) {
  (a.tanh ? gated_rows<GeluTanh, T> : gated_rows<Gelu, T>)(a, first, last);
}
template <class T> void gelu_gated_gradients(const norm::Gated& a, long long first, long long last) {
  (a.tanh ? gated_gradients<GeluTanh, T> : gated_gradients<Gelu, T>)(a, first, last);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
