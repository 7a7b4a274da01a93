// SPDX-License-Identifier: MIT
// Words of expressions: numbers and truths in lanes, or one for all lanes. The compiler's vectors serve every ISA, exp and tanh are the
// vocabulary's. A truth in lanes is all bits or none.
#pragma once

#include "kernels/backends/cpu/exp2.h"
#include "kernels/backends/cpu/tanh.h"
#include "kernels/backends/scalars.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using scalars::both, scalars::both_bits, scalars::choose, scalars::either, scalars::either_bits, scalars::exponential,
    scalars::least, scalars::left, scalars::minus, scalars::most, scalars::number, scalars::opposite,
    scalars::other_bits, scalars::over, scalars::plus, scalars::quotient, scalars::remainder, scalars::right,
    scalars::shift_of, scalars::size, scalars::tangent, scalars::times;

typedef float vfloat __attribute__((vector_size(4 * kLanes)));
typedef int vint __attribute__((vector_size(4 * kLanes)));
typedef unsigned vword __attribute__((vector_size(4 * kLanes)));

template <class To, class From> TILEKILN_INLINE To same_bits(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  __builtin_memcpy(&to, &x, sizeof to);
  return to;
}

// One number or truth for all lanes.
TILEKILN_INLINE vfloat lanes(float x) { return same_bits<vfloat>(broadcast(x)); }
TILEKILN_INLINE vint lanes(int x) { return vint{} + x; }
TILEKILN_INLINE vint lanes(bool x) { return vint{} - int(x); }
TILEKILN_INLINE vint numbered(int first) { return __builtin_convertvector(same_bits<vfloat>(iota()), vint) + first; }

// The words of scalars.h in lanes; fp32 has the templates there.
TILEKILN_INLINE vint plus(vint a, vint b) { return (vint)((vword)a + (vword)b); }
TILEKILN_INLINE vint minus(vint a, vint b) { return (vint)((vword)a - (vword)b); }
TILEKILN_INLINE vint times(vint a, vint b) { return (vint)((vword)a * (vword)b); }

TILEKILN_INLINE vfloat number(vint x) { return __builtin_convertvector(x, vfloat); }

// Either of two, by a truth.
template <class T> TILEKILN_INLINE T choose(vint which, T yes, T no) {
  return same_bits<T>((which & same_bits<vint>(yes)) | (~which & same_bits<vint>(no)));
}

TILEKILN_INLINE vint both(vint a, vint b) { return a & b; }
TILEKILN_INLINE vint either(vint a, vint b) { return a | b; }
TILEKILN_INLINE vint opposite(vint a) { return ~a; }

TILEKILN_INLINE vint shift_of(vint by) { return choose(by < 0, vint{}, choose(by > 31, lanes(31), by)); }
TILEKILN_INLINE vint left(vint a, vint by) { return (vint)((vword)a << (vword)shift_of(by)); }
TILEKILN_INLINE vint right(vint a, vint by) { return a >> shift_of(by); }
TILEKILN_INLINE vint quotient(vint a, vint b) {
  vint made;
  for (int i = 0; i < kLanes; ++i) made[i] = quotient(a[i], b[i]);
  return made;
}
TILEKILN_INLINE vint remainder(vint a, vint b) {
  vint made;
  for (int i = 0; i < kLanes; ++i) made[i] = remainder(a[i], b[i]);
  return made;
}
// A NaN of either comes out.
template <class T> TILEKILN_INLINE T least(T a, T b) { return choose(either(a < b, a != a), a, b); }
template <class T> TILEKILN_INLINE T most(T a, T b) { return choose(either(a > b, a != a), a, b); }
TILEKILN_INLINE vfloat size(vfloat x) { return same_bits<vfloat>(abs(same_bits<vf>(x))); }
TILEKILN_INLINE vint size(vint x) { return choose(x < 0, minus(vint{}, x), x); }

TILEKILN_INLINE vfloat root(vfloat x) {
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
}

// e^x = (2^(x / 2 log2 e))^2: within +-80 of the exponent's half 2^x of the vocabulary is a number, whose square may be infinite or 0.
TILEKILN_INLINE vfloat exponential(vfloat x) {
  const vf half = mul(same_bits<vf>(x), broadcast(.5f * 1.44269504088896f));
  const vf root = exp2<5>(max(broadcast(-80.f), min(broadcast(80.f), half)));
  return same_bits<vfloat>(mul(root, root));
}
TILEKILN_INLINE vfloat tangent(vfloat x) { return same_bits<vfloat>(Tanh()(same_bits<vf>(x))); }

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
