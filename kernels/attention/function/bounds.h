// SPDX-License-Identifier: MIT
// Bounds of a function over all pairs of a block, by interval arithmetic: they tell that a mask hides a whole block, or none of it,
// without a look at its pairs. Bounds may be wide, never narrow: numbers of 32 bits are rounded outward.
#pragma once

#include "kernels/attention/function/elements.h"

namespace tilekiln::scalars::inline TILEKILN_TARGET {

constexpr double kWidest = __builtin_inf();
constexpr double kLeastInt = -2147483648., kMostInt = 2147483647.;
constexpr int kMostBoundElements = 256;  // of a tensor, that are looked at for one block

// Every number lies in [low, high], but for those that are NaN where any may be.
struct Bounds {
  double low, high;
  bool nan = false;
};
struct Truth { bool may_hold, may_fail; };

// A block of pairs of one head: rows and keys are counted from 0 in their sequence.
struct Pairs { int row, rows, key, keys, head, batch; };

TILEKILN_DEVICE Bounds bound(double x) { return {x, x}; }
TILEKILN_DEVICE Bounds bound_lanes(long long first, int count) { return {double(first), double(first + count - 1)}; }

// An integer beyond 32 bits wraps to any.
TILEKILN_DEVICE Bounds wrapped(Bounds x) {
  return x.low < kLeastInt || x.high > kMostInt ? Bounds{kLeastInt, kMostInt} : x;
}
// The rounding of an operation on fp32, with its overflow; an end that is none is an infinity less another.
TILEKILN_DEVICE Bounds rounded(Bounds x) {
  if (x.low != x.low || x.high != x.high) return {-kWidest, kWidest, true};
  const double low = __builtin_fabs(x.low) * 1e-6 + 1e-37, high = __builtin_fabs(x.high) * 1e-6 + 1e-37;
  return {x.low - low < -3e38 ? -kWidest : x.low - low, x.high + high > 3e38 ? kWidest : x.high + high, x.nan};
}

TILEKILN_DEVICE Bounds hull(double a, double b, double c, double d, bool nan) {
  if (a != a || b != b || c != c || d != d) return {-kWidest, kWidest, true};
  return {__builtin_fmin(__builtin_fmin(a, b), __builtin_fmin(c, d)),
          __builtin_fmax(__builtin_fmax(a, b), __builtin_fmax(c, d)), nan};
}
TILEKILN_DEVICE Bounds plus(Bounds a, Bounds b) {
  const bool meet = (a.low == -kWidest && b.high == kWidest) || (a.high == kWidest && b.low == -kWidest);
  return {a.low + b.low, a.high + b.high, a.nan || b.nan || meet};
}
TILEKILN_DEVICE Bounds negative(Bounds a) { return {-a.high, -a.low, a.nan}; }
TILEKILN_DEVICE Bounds minus(Bounds a, Bounds b) { return plus(a, negative(b)); }
TILEKILN_DEVICE bool has_zero(Bounds a) { return a.low <= 0 && a.high >= 0; }
TILEKILN_DEVICE bool has_infinity(Bounds a) { return a.low == -kWidest || a.high == kWidest; }
TILEKILN_DEVICE Bounds times(Bounds a, Bounds b) {
  const bool meet = (has_zero(a) && has_infinity(b)) || (has_infinity(a) && has_zero(b));
  return hull(a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high, a.nan || b.nan || meet);
}
TILEKILN_DEVICE Bounds over(Bounds a, Bounds b) {
  if (has_zero(b)) return {-kWidest, kWidest, true};
  return hull(a.low / b.low, a.low / b.high, a.high / b.low, a.high / b.high, a.nan || b.nan);
}
TILEKILN_DEVICE Bounds least(Bounds a, Bounds b) {
  return {__builtin_fmin(a.low, b.low), __builtin_fmin(a.high, b.high), a.nan || b.nan};
}
TILEKILN_DEVICE Bounds most(Bounds a, Bounds b) {
  return {__builtin_fmax(a.low, b.low), __builtin_fmax(a.high, b.high), a.nan || b.nan};
}
TILEKILN_DEVICE Bounds size(Bounds a) {
  const double low = __builtin_fabs(a.low), high = __builtin_fabs(a.high);
  return {has_zero(a) ? 0 : __builtin_fmin(low, high), __builtin_fmax(low, high), a.nan};
}
TILEKILN_DEVICE Bounds exponential(Bounds a) {
  return rounded({__builtin_exp(a.low) * .9999, __builtin_exp(a.high) * 1.0001, a.nan});
}
TILEKILN_DEVICE Bounds tangent(Bounds a) {
  return {__builtin_tanh(a.low) - 1e-5, __builtin_tanh(a.high) + 1e-5, a.nan};
}
TILEKILN_DEVICE Bounds choose(Truth which, Bounds yes, Bounds no) {
  if (!which.may_fail) return yes;
  if (!which.may_hold) return no;
  return {__builtin_fmin(yes.low, no.low), __builtin_fmax(yes.high, no.high), yes.nan || no.nan};
}

TILEKILN_DEVICE bool single(Bounds a) { return a.low == a.high && !a.nan; }
constexpr Bounds kAnyInt{kLeastInt, kMostInt};

// Bounds of what integers alone have.
TILEKILN_DEVICE Bounds quotient(Bounds a, Bounds b) {
  if (b.low <= 0) return kAnyInt;
  return {__builtin_floor(a.low / (a.low < 0 ? b.low : b.high)),
          __builtin_floor(a.high / (a.high < 0 ? b.high : b.low))};
}
TILEKILN_DEVICE Bounds remainder(Bounds a, Bounds b) {
  if (b.low <= 0) return kAnyInt;
  const double first = __builtin_floor(a.low / b.low);
  if (single(b) && first == __builtin_floor(a.high / b.low)) return {a.low - first * b.low, a.high - first * b.low};
  return {0, b.high - 1};
}
TILEKILN_DEVICE Bounds left(Bounds a, Bounds by) {
  return single(by) ? times(a, bound(double(1u << shift_of(int(by.low))))) : kAnyInt;
}
TILEKILN_DEVICE Bounds right(Bounds a, Bounds by) {
  return single(by) ? quotient(a, bound(double(1u << shift_of(int(by.low))))) : kAnyInt;
}
TILEKILN_DEVICE Bounds both_bits(Bounds a, Bounds b) {
  if (single(a) && single(b)) return bound(double(int(a.low) & int(b.low)));
  if (a.low < 0 && b.low < 0) return kAnyInt;
  return {0, a.low < 0 ? b.high : b.low < 0 ? a.high : __builtin_fmin(a.high, b.high)};
}
TILEKILN_DEVICE Bounds either_bits(Bounds a, Bounds b) {
  return single(a) && single(b) ? bound(double(int(a.low) | int(b.low))) : kAnyInt;
}
TILEKILN_DEVICE Bounds other_bits(Bounds a, Bounds b) {
  return single(a) && single(b) ? bound(double(int(a.low) ^ int(b.low))) : kAnyInt;
}

TILEKILN_DEVICE Truth less(Bounds a, Bounds b) { return {a.low < b.high, a.nan || b.nan || a.high >= b.low}; }
TILEKILN_DEVICE Truth less_or_equal(Bounds a, Bounds b) { return {a.low <= b.high, a.nan || b.nan || a.high > b.low}; }
TILEKILN_DEVICE Truth same(Bounds a, Bounds b) {
  const bool apart = a.high < b.low || b.high < a.low, one = a.low == a.high && b.low == b.high && a.low == b.low;
  return {!apart, a.nan || b.nan || !one};
}
TILEKILN_DEVICE Truth both(Truth a, Truth b) { return {a.may_hold && b.may_hold, a.may_fail || b.may_fail}; }
TILEKILN_DEVICE Truth either(Truth a, Truth b) { return {a.may_hold || b.may_hold, a.may_fail && b.may_fail}; }
TILEKILN_DEVICE Truth opposite(Truth a) { return {a.may_fail, a.may_hold}; }

TILEKILN_DEVICE int first_of(Bounds index) { return int(index.low); }

// Bounds of the elements at every index within bounds, where they are few.
template <class T, class... Index> TILEKILN_DEVICE Bounds element_bounds(const fmha::FunctionTensor& t,
                                                                         Index... index) {
  constexpr int kDims = sizeof...(index);
  const Bounds of[kDims] = {index...};
  int first[kDims], last[kDims];
  long long count = 1;
  for (int d = 0; d < kDims; ++d) {
    first[d] = within(int(of[d].low), t.count[d]);
    last[d] = within(int(of[d].high), t.count[d]);
    count *= last[d] - first[d] + 1;
    if (count > kMostBoundElements) break;
  }
  const bool is_float = T(.5f) != 0;
  if (count > kMostBoundElements) return is_float ? Bounds{-kWidest, kWidest, true} : Bounds{kLeastInt, kMostInt};
  if (count == 1 && !is_float) return bound(double(element<T>(t, first_of(index)...)));
  Bounds all{kWidest, -kWidest};
  for (int i = 0; i < int(count); ++i) {
    long long at = 0;
    for (int d = kDims - 1, left = i; d >= 0; --d) {
      const int some = last[d] - first[d] + 1;
      at += t.stride[d] * (first[d] + left % some);
      left /= some;
    }
    const T x = ((const T*)t.data)[at];
    if (x != x)
      all.nan = true;
    else
      all.low = __builtin_fmin(all.low, double(x)), all.high = __builtin_fmax(all.high, double(x));
  }
  return all.low > all.high ? Bounds{-kWidest, kWidest, true} : all;
}

}  // namespace tilekiln::scalars::inline TILEKILN_TARGET
