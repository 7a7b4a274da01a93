// Rows and their statistics: lanes run along a row, which is read from memory once; later passes find it in the cache, in its
// own type. Sums are four vectors, added pairwise at the end of the row, so their bits do not depend on threads.
#pragma once

#include "kernels/backends/cpu/load.h"
#include "kernels/backends/cpu/vectors.h"
#include "kernels/norm/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

struct Sums {
  vf of[4] = {zero(), zero(), zero(), zero()};
  TILEKILN_INLINE float total() const { return cpu::total(add(add(of[0], of[1]), add(of[2], of[3]))); }
};

// 0 in lanes that do not exist.
TILEKILN_INLINE vf existing(int left, vf a) { return left >= kLanes ? a : keep_if(lane_bits((1u << left) - 1), a); }

// As it is after having been stored.
template <class T> TILEKILN_INLINE vf rounded(vf a) {
  if constexpr (sizeof(T) == sizeof(float)) return a;
  T row[kLanes];
  narrow(row, a);
  return widen(row);
}

// What is normalised: a row, or the sum of two as it is stored.
template <class T> struct Plain {
  const T* x;
  TILEKILN_INLINE vf operator()(int j, int left) const { return widen_some(x + j, left); }
};
template <class T> struct Added {
  const T *x, *residual;
  TILEKILN_INLINE vf operator()(int j, int left) const {
    return rounded<T>(add(widen_some(x + j, left), widen_some(residual + j, left)));
  }
};

// rms_rounded: x / rms is rounded to the type of x before it meets gamma. none: elements as they are.
enum class Norm { none, layer, rms, rms_rounded };

// A row's elements, normalised.
template <class T, Norm kNorm> struct Normalised {
  const T *gamma, *beta;
  vf mean, inverse, shift;  // layer: (v - mean) inverse + shift

  TILEKILN_INLINE vf operator()(vf v, int j, int left) const {
    if constexpr (kNorm == Norm::none) return v;
    const vf factor = widen_some(gamma + j, left);
    if constexpr (kNorm == Norm::layer)
      return fma(fma(sub(v, mean), inverse, shift), factor, beta ? widen_some(beta + j, left) : zero());
    else if constexpr (kNorm == Norm::rms)
      return mul(mul(v, inverse), factor);
    else
      return mul(rounded<T>(mul(v, inverse)), factor);
  }
};

// Sums of a row's deviations from `centre`: for a layer of any number near its elements, else of 0 and of squares alone.
struct Moments { float centre, sum, squares; };

// `stored`, where kStore, receives the elements.
template <class T, Norm kNorm, bool kStore, class From>
TILEKILN_INLINE Moments moments(const From& from, int columns, float centre, T* stored) {
  if constexpr (kNorm == Norm::none) return {};
  Sums sum, squares;
  const vf c = broadcast(centre);
  vectors(columns, [&](int j, int i, int left) __attribute__((always_inline)) {
    const vf v = from(j, left);
    const vf d = kNorm == Norm::layer ? existing(left, sub(v, c)) : v;
    if constexpr (kNorm == Norm::layer) sum.of[i] = add(sum.of[i], d);
    squares.of[i] = fma(d, d, squares.of[i]);
    if constexpr (kStore) narrow_some(stored + j, v, left);
  });
  return {centre, kNorm == Norm::layer ? sum.total() : 0, squares.total()};
}

// The mean of the first elements: near the row's, unless they are unlike the rest.
template <Norm kNorm, class From> TILEKILN_INLINE float near_centre(const From& from, int columns) {
  if constexpr (kNorm != Norm::layer) return 0;
  const int some = columns < 4 * kLanes ? columns : 4 * kLanes;
  vf sum = zero();
  for (int j = 0; j < some; j += kLanes) sum = add(sum, from(j, columns - j));
  return total(sum) / float(some);
}

// What normalises a row of these moments. Where m is a mean as fp32 has it, or another number near it,
//   mean = m + c, variance = mean((v - m)^2) - c^2    with c = mean(v - m)
// and y is that of (v - m) - c, so that rows far from 0 keep their digits. Where c^2 is large beside the variance, as behind
// elements that are unlike the rest, moments are taken again, about the mean.
template <class T, Norm kNorm, class From>
TILEKILN_INLINE Normalised<T, kNorm> statistics(const norm::Problem& a, long long m, const From& from, Moments of) {
  const float columns = float(a.columns);
  if constexpr (kNorm == Norm::none) {
    return {nullptr, nullptr, zero(), zero(), zero()};
  } else if constexpr (kNorm != Norm::layer) {
    const float inverse = 1 / __builtin_sqrtf(of.squares / columns + a.epsilon);
    if (a.inverse) a.inverse[m] = inverse;
    return {(const T*)a.gamma, nullptr, zero(), broadcast(inverse), zero()};
  } else {
    float rest = of.sum / columns, variance = of.squares / columns - rest * rest;
    if (!(rest * rest <= 4 * variance)) {
      of = moments<T, kNorm, false>(from, a.columns, of.centre + rest, (T*)nullptr);
      rest = of.sum / columns, variance = of.squares / columns - rest * rest;
    }
    const float inverse = 1 / __builtin_sqrtf((variance < 0 ? 0 : variance) + a.epsilon);
    if (a.mean) a.mean[m] = of.centre + rest;
    if (a.inverse) a.inverse[m] = inverse;
    const vf shift = broadcast(-rest * inverse);
    return {(const T*)a.gamma, (const T*)a.beta, broadcast(of.centre), broadcast(inverse), shift};
  }
}

// finish(m, elements, what normalises them) for each row of [first, last). An element that was stored in residual_out is read
// from there: residual may be that memory.
template <class T, Norm kNorm, class Finish>
TILEKILN_INLINE void each_row(const norm::Problem& a, long long first, long long last, Finish&& finish) {
  for (long long m = first; m < last; ++m) {
    const T* x = (const T*)a.x + m * a.x_row;
    const Added<T> added = {x, (const T*)a.residual + m * a.residual_row};
    T* stored = a.residual_out ? (T*)a.residual_out + m * a.residual_out_row : nullptr;
    if (a.residual && !stored) {
      const Moments of = moments<T, kNorm, false>(added, a.columns, near_centre<kNorm>(added, a.columns), stored);
      finish(m, added, statistics<T, kNorm>(a, m, added, of));
      continue;
    }
    const Plain<T> from = {stored ? stored : x};
    const Moments of = stored ? moments<T, kNorm, true>(added, a.columns, near_centre<kNorm>(added, a.columns), stored)
                              : moments<T, kNorm, false>(from, a.columns, near_centre<kNorm>(from, a.columns), stored);
    finish(m, from, statistics<T, kNorm>(a, m, from, of));
  }
}

// y, of the type of x.
template <class T, Norm kNorm> void normalise(const norm::Problem& a, long long first, long long last) {
  each_row<T, kNorm>(a, first, last, [&](long long m, auto from, auto normalised) __attribute__((always_inline)) {
    T* y = (T*)a.y + m * a.y_row;
    vectors(a.columns, [&](int j, int, int left) __attribute__((always_inline)) {
      narrow_some(y + j, normalised(from(j, left), j, left), left);
    });
  });
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
