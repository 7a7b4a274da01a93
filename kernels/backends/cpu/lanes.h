// SPDX-License-Identifier: MIT
// Words of expressions: numbers and truths in lanes, or one for all lanes. The compiler's vectors serve every ISA, exp and tanh are the
// vocabulary's. A truth in lanes is all bits or none.
#pragma once

#include "kernels/backends/cpu/exp2.h"
#include "kernels/backends/cpu/tanh.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

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

// Integers of 32 bits, which wrap.
TILEKILN_INLINE vint plus(vint a, vint b) { return (vint)((vword)a + (vword)b); }
TILEKILN_INLINE vint minus(vint a, vint b) { return (vint)((vword)a - (vword)b); }
TILEKILN_INLINE vint times(vint a, vint b) { return (vint)((vword)a * (vword)b); }
TILEKILN_INLINE int plus(int a, int b) { return int(unsigned(a) + unsigned(b)); }
TILEKILN_INLINE int minus(int a, int b) { return int(unsigned(a) - unsigned(b)); }
TILEKILN_INLINE int times(int a, int b) { return int(unsigned(a) * unsigned(b)); }

template <class T> TILEKILN_INLINE T plus(T a, T b) { return a + b; }
template <class T> TILEKILN_INLINE T minus(T a, T b) { return a - b; }
template <class T> TILEKILN_INLINE T times(T a, T b) { return a * b; }
template <class T> TILEKILN_INLINE T over(T a, T b) { return a / b; }

TILEKILN_INLINE vfloat number(vint x) { return __builtin_convertvector(x, vfloat); }
TILEKILN_INLINE float number(int x) { return float(x); }

// Either of two, by a truth.
template <class T> TILEKILN_INLINE T choose(vint which, T yes, T no) {
  return same_bits<T>((which & same_bits<vint>(yes)) | (~which & same_bits<vint>(no)));
}
template <class T> TILEKILN_INLINE T choose(bool which, T yes, T no) { return which ? yes : no; }

TILEKILN_INLINE vint both(vint a, vint b) { return a & b; }
TILEKILN_INLINE vint either(vint a, vint b) { return a | b; }
TILEKILN_INLINE vint opposite(vint a) { return ~a; }
TILEKILN_INLINE bool both(bool a, bool b) { return a && b; }
TILEKILN_INLINE bool either(bool a, bool b) { return a || b; }
TILEKILN_INLINE bool opposite(bool a) { return !a; }

// Quotients are rounded down as Python's, by 0 they are 0; remainders have the sign of the divisor, by 0 they are 0. Shifts by less
// than 0 or more than 31 are by 0 and 31.
TILEKILN_INLINE int quotient(int a, int b) {
  if (b == 0 || b == -1) return b == 0 ? 0 : minus(0, a);
  return a / b - (a % b != 0 && (a ^ b) < 0);
}
TILEKILN_INLINE int remainder(int a, int b) { return b == 0 ? 0 : minus(a, times(quotient(a, b), b)); }
TILEKILN_INLINE int shift_of(int by) { return by < 0 ? 0 : by > 31 ? 31 : by; }
TILEKILN_INLINE int left(int a, int by) { return int(unsigned(a) << shift_of(by)); }
TILEKILN_INLINE int right(int a, int by) { return a >> shift_of(by); }
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
template <class T> TILEKILN_INLINE T both_bits(T a, T b) { return a & b; }
template <class T> TILEKILN_INLINE T either_bits(T a, T b) { return a | b; }
template <class T> TILEKILN_INLINE T other_bits(T a, T b) { return a ^ b; }

// A NaN of either comes out.
template <class T> TILEKILN_INLINE T least(T a, T b) { return choose(either(a < b, a != a), a, b); }
template <class T> TILEKILN_INLINE T most(T a, T b) { return choose(either(a > b, a != a), a, b); }
TILEKILN_INLINE vfloat size(vfloat x) { return same_bits<vfloat>(abs(same_bits<vf>(x))); }
TILEKILN_INLINE vint size(vint x) { return choose(x < 0, minus(vint{}, x), x); }
TILEKILN_INLINE float size(float x) { return __builtin_fabsf(x); }
TILEKILN_INLINE int size(int x) { return x < 0 ? minus(0, x) : x; }

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
TILEKILN_INLINE float exponential(float x) { return __builtin_expf(x); }
TILEKILN_INLINE vfloat tangent(vfloat x) { return same_bits<vfloat>(Tanh()(same_bits<vf>(x))); }
TILEKILN_INLINE float tangent(float x) { return __builtin_tanhf(x); }

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
