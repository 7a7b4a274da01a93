// What happens to a block of accumulators while it lies in L1: one function per chain, folded at compile time; one call a block.
#pragma once

#include "tilekiln/cpu/gemm/pack.h"
#include "tilekiln/matrix/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// `sums` is rows x cols, kPanel floats a row; (m, n) is where it lies in out.
using Epilogue = void (*)(const matrix::Problem&, const float* sums, int m, int n, int rows, int cols);

// 1 / (1 + exp(-x)). Cut where it is 0 or 1 to fp32; NaN stays.
TILEKILN_INLINE vf sigmoid(vf x) {
  const vf y = max(broadcast(-126.f), min(broadcast(126.f), mul(x, broadcast(-1.44269504088896f))));
  return reciprocal(add(broadcast(1.f), exp2<5>(y)));
}
// 1 - erf(z) by Abramowitz and Stegun 7.1.26, absolute error 1.5e-7. z >= 0 or NaN.
TILEKILN_INLINE vf erfc_of_positive(vf z) {
  const vf t = reciprocal(fma(broadcast(0.3275911f), z, broadcast(1.f)));
  vf y = broadcast(1.061405429f);
  y = fma(y, t, broadcast(-1.453152027f));
  y = fma(y, t, broadcast(1.421413741f));
  y = fma(y, t, broadcast(-0.284496736f));
  y = fma(y, t, broadcast(0.254829592f));
  const vf e = exp2<5>(max(broadcast(-140.f), mul(mul(z, z), broadcast(-1.44269504088896f))));
  return mul(mul(y, t), e);
}
// x before a factor that tends to 0 as x falls: it stops where the product is below 2^-100, so that -inf gives 0 and no NaN.
TILEKILN_INLINE vf not_below(float least, vf x) { return max(broadcast(least), x); }

// The functors. Adding one is a line here, a word in operator.yaml and family.yaml and a line in its enum.
struct None {
  static TILEKILN_INLINE vf apply(vf x) { return x; }
};
struct Relu {
  static TILEKILN_INLINE vf apply(vf x) { return max(zero(), x); }
};
struct Silu {
  static TILEKILN_INLINE vf apply(vf x) { return mul(not_below(-104.f, x), sigmoid(x)); }
};
struct GeluTanh {  // x / 2 (1 + tanh y) = x sigmoid(2 y), y = sqrt(2 / pi) (x + 0.044715 x^3)
  static TILEKILN_INLINE vf apply(vf x) {
    const vf cube = fma(mul(x, x), broadcast(0.0713548162726f), broadcast(1.59576912160573f));
    return mul(not_below(-50.f, x), sigmoid(mul(x, cube)));
  }
};
struct Gelu {  // x / 2 (1 + erf(x / sqrt 2)) = max(x, 0) - |x| / 2 (1 - erf(|x| / sqrt 2))
  static TILEKILN_INLINE vf apply(vf x) {
    const vf size = min(broadcast(1e18f), abs(x));  // the tail is 0 there, and inf times 0 is NaN
    const vf tail = erfc_of_positive(mul(size, broadcast(0.70710678118655f)));
    return sub(max(zero(), x), mul(mul(size, broadcast(0.5f)), tail));
  }
};

// c of a row: contiguous, or from column to column by any stride.
template <class T> TILEKILN_INLINE vf load_c(const T* p, matrix::i64 step, int left) {
  if (step == 1) return widen_some(p, left);
  T row[kLanes] = {};
  for (int i = 0; i < kLanes && i < left; ++i) row[i] = p[i * step];
  return widen(row);
}

// Plain: alpha is 1, and there is neither c nor bias.
template <class T, class Activation, bool Plain>
void finish(const matrix::Problem& p, const float* sums, int m, int n, int rows, int cols) {
  for (int r = 0; r < rows; ++r, sums += kPanel) {
    T* out = (T*)p.out + (m + r) * p.out_row + n;
    const T* c = p.c ? (const T*)p.c + (m + r) * p.c_row + n * p.c_column : nullptr;
    const auto vector = [&](int j, int left) __attribute__((always_inline)) {
      vf x = load(sums + j);
      if constexpr (!Plain) {
        x = mul(x, broadcast(p.alpha));
        if (c) x = fma(load_c(c + j * p.c_column, p.c_column, left), broadcast(p.beta), x);
        if (p.bias) x = add(x, p.bias_of_rows ? broadcast(p.bias[m + r]) : widen_some(p.bias + n + j, left));
      }
      narrow_some(out + j, Activation::apply(x), left);
    };
    if (cols >= kPanel) {
      TILEKILN_UNROLL(4) for (int j = 0; j < kPanel; j += kLanes) vector(j, kLanes);
    } else {
      for (int j = 0; j < cols; j += kLanes) vector(j, cols - j);
    }
  }
}

// The sums as they are, fp32 or int32: a part of a panel.
inline void finish_words(const matrix::Problem& p, const float* sums, int m, int n, int rows, int cols) {
  for (int r = 0; r < rows; ++r, sums += kPanel)
    __builtin_memcpy((float*)p.out + (m + r) * p.out_row + n, sums, cols * sizeof *sums);
}

// What becomes of the sums. as_they_are: they are out, but for their rounding to the dtype of out.
struct Finish {
  Epilogue block;
  bool as_they_are;
};
template <class T> Finish finish_of(const matrix::Problem& p) {
  static constexpr Epilogue plain[] = {finish<T, None, true>, finish<T, Relu, true>, finish<T, Gelu, true>,
                                       finish<T, GeluTanh, true>, finish<T, Silu, true>};
  static constexpr Epilogue full[] = {finish<T, None, false>, finish<T, Relu, false>, finish<T, Gelu, false>,
                                      finish<T, GeluTanh, false>, finish<T, Silu, false>};
  static_assert(sizeof plain / sizeof *plain == matrix::kActivations && sizeof full == sizeof plain);
  const bool alone = p.alpha == 1 && !p.c && !p.bias;
  return {(alone ? plain : full)[(int)p.activation], alone && p.activation == matrix::Activation::none};
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
