// SPDX-License-Identifier: MIT
// Words of expressions over one number or truth, on CPUs and on NVIDIA GPUs; kernels/backends/cpu/lanes.h has them in lanes.
//
// The includer may define TILEKILN_DEVICE, the words that a function begins with.
#pragma once

#ifndef TILEKILN_DEVICE
#define TILEKILN_DEVICE static inline __attribute__((always_inline))
#endif

namespace tilekiln::scalars::inline TILEKILN_TARGET {

// Integers of 32 bits, which wrap.
TILEKILN_DEVICE int plus(int a, int b) { return int(unsigned(a) + unsigned(b)); }
TILEKILN_DEVICE int minus(int a, int b) { return int(unsigned(a) - unsigned(b)); }
TILEKILN_DEVICE int times(int a, int b) { return int(unsigned(a) * unsigned(b)); }

template <class T> TILEKILN_DEVICE T plus(T a, T b) { return a + b; }
template <class T> TILEKILN_DEVICE T minus(T a, T b) { return a - b; }
template <class T> TILEKILN_DEVICE T times(T a, T b) { return a * b; }
template <class T> TILEKILN_DEVICE T over(T a, T b) { return a / b; }

TILEKILN_DEVICE float number(int x) { return float(x); }

template <class T> TILEKILN_DEVICE T choose(bool which, T yes, T no) { return which ? yes : no; }
TILEKILN_DEVICE bool both(bool a, bool b) { return a && b; }
TILEKILN_DEVICE bool either(bool a, bool b) { return a || b; }
TILEKILN_DEVICE bool opposite(bool a) { return !a; }

// Quotients are rounded down as Python's, by 0 they are 0; remainders have the sign of the divisor, by 0 they are 0. Shifts by less
// than 0 or more than 31 are by 0 and 31.
TILEKILN_DEVICE int quotient(int a, int b) {
  if (b == 0 || b == -1) return b == 0 ? 0 : minus(0, a);
  return a / b - (a % b != 0 && (a ^ b) < 0);
}
TILEKILN_DEVICE int remainder(int a, int b) { return b == 0 ? 0 : minus(a, times(quotient(a, b), b)); }
TILEKILN_DEVICE int shift_of(int by) { return by < 0 ? 0 : by > 31 ? 31 : by; }
TILEKILN_DEVICE int left(int a, int by) { return int(unsigned(a) << shift_of(by)); }
TILEKILN_DEVICE int right(int a, int by) { return a >> shift_of(by); }
template <class T> TILEKILN_DEVICE T both_bits(T a, T b) { return a & b; }
template <class T> TILEKILN_DEVICE T either_bits(T a, T b) { return a | b; }
template <class T> TILEKILN_DEVICE T other_bits(T a, T b) { return a ^ b; }

// A NaN of either comes out.
TILEKILN_DEVICE float least(float a, float b) { return a < b || a != a ? a : b; }
TILEKILN_DEVICE float most(float a, float b) { return a > b || a != a ? a : b; }
TILEKILN_DEVICE int least(int a, int b) { return a < b ? a : b; }
TILEKILN_DEVICE int most(int a, int b) { return a > b ? a : b; }
TILEKILN_DEVICE float size(float x) { return __builtin_fabsf(x); }
TILEKILN_DEVICE int size(int x) { return x < 0 ? minus(0, x) : x; }

TILEKILN_DEVICE float exponential(float x) { return __builtin_expf(x); }
TILEKILN_DEVICE float tangent(float x) { return __builtin_tanhf(x); }

}  // namespace tilekiln::scalars::inline TILEKILN_TARGET
