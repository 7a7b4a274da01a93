// SPDX-License-Identifier: MIT
// Rows and their statistics: lanes run along a row, which is read from memory once; later passes find it in the cache, in its
// own type.
#pragma once

#include "kernels/backends/cpu/moments.h"
#include "kernels/norm/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// The sum of two rows as it is stored.
template <class T> struct Added {
  const T *x, *residual;
  TILEKILN_INLINE Two operator()(int j, int left) const {
    return rounded<T>(add(widen_two<T>(x + j, left), widen_two<T>(residual + j, left)));
  }
#if TILEKILN_PAIRS
  TILEKILN_INLINE vh halves(int j, int left) const {
    const Two sum = add(widen_two<T>(x + j, left), widen_two<T>(residual + j, left));
    return {bf16_words(sum.a, sum.b)};
  }
#endif
};

// rms_rounded: x / rms is rounded to the type of x before it meets gamma. none: elements as they are.
enum class Norm { none, layer, rms, rms_rounded };

// gamma and beta of the same columns.
struct Factors { Two gamma, beta; };
template <class T, Norm kNorm>
TILEKILN_INLINE Factors factors_at(const T* gamma, const T* beta, int j, int left) {
  Factors of = {both_of(zero()), both_of(zero())};
  if constexpr (kNorm != Norm::none) of.gamma = widen_two<T>(gamma + j, left);
  if (kNorm == Norm::layer && beta) of.beta = widen_two<T>(beta + j, left);
  return of;
}
// layer: (v - mean) inverse + shift. kAtZero: mean is 0, and need not be taken off.
template <class T, Norm kNorm, bool kAtZero>
TILEKILN_INLINE Two normalised(Two v, vf mean, vf inverse, vf shift, const Factors& by) {
  if constexpr (kNorm == Norm::none)
    return v;
  else if constexpr (kNorm == Norm::layer)
    return fma(fma(kAtZero ? v : sub(v, mean), inverse, shift), by.gamma, by.beta);
  else if constexpr (kNorm == Norm::rms)
    return mul(mul(v, inverse), by.gamma);
  else
    return mul(rounded<T>(mul(v, inverse)), by.gamma);
}

// A row's elements, normalised.
template <class T, Norm kNorm> struct Normalised {
  const T *gamma, *beta;
  vf mean, inverse, shift;
  bool at_zero = false;

  template <bool kAtZero = false> TILEKILN_INLINE Two of(Two v, int j, int left) const {
    return normalised<T, kNorm, kAtZero>(v, mean, inverse, shift, factors_at<T, kNorm>(gamma, beta, j, left));
  }
  TILEKILN_INLINE Two operator()(Two v, int j, int left) const { return of(v, j, left); }
};

// The mean of the first elements: near the row's, unless they are unlike the rest.
template <Norm kNorm, class From> TILEKILN_INLINE float near_centre(const From& from, int columns) {
  if constexpr (kNorm != Norm::layer) return 0;
  const int some = columns < 2 * kTwo ? columns : 2 * kTwo;
  Two sum = both_of(zero());
  for (int j = 0; j < some; j += kTwo) sum = add(sum, from(j, columns - j));
  return total(add(sum.a, sum.b)) / float(some);
}

// Moments of a row, about a number near its elements.
template <class T, Norm kNorm, bool kStore, class From>
TILEKILN_INLINE Moments first_moments(const From& from, int columns, T* stored) {
#if TILEKILN_PAIRS
  if constexpr (kEvenOdd<T> && kNorm != Norm::none) {
    Moments of;
    if (moments_of_pairs<kNorm == Norm::layer, kStore>(from, columns, stored, of)) return of;
  }
#endif
  if constexpr (kNorm == Norm::none) return {};
  return moments<T, kNorm == Norm::layer, kStore>(from, columns, near_centre<kNorm>(from, columns), stored);
}

// The normalisation of a row of these moments. Where m is a mean as fp32 has it, or another number near it,
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
      of = moments<T, true, false>(from, a.columns, of.centre + rest, (T*)nullptr);
      rest = of.sum / columns, variance = of.squares / columns - rest * rest;
      if (of.squares > 3.40282347e38f) variance = of.squares;  // whatever is left of the mean
    }
    const float inverse = 1 / __builtin_sqrtf((variance < 0 ? 0 : variance) + a.epsilon);
    if (a.mean) a.mean[m] = of.centre + rest;
    if (a.inverse) a.inverse[m] = inverse;
    const vf shift = broadcast(-rest * inverse);
    return {(const T*)a.gamma, (const T*)a.beta, broadcast(of.centre), broadcast(inverse), shift, of.centre == 0};
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
      const Moments of = first_moments<T, kNorm, false>(added, a.columns, stored);
      finish(m, added, statistics<T, kNorm>(a, m, added, of));
      continue;
    }
    const Plain<T> from = {stored ? stored : x};
    const Moments of = stored ? first_moments<T, kNorm, true>(added, a.columns, stored)
                              : first_moments<T, kNorm, false>(from, a.columns, stored);
    finish(m, from, statistics<T, kNorm>(a, m, from, of));
  }
}

// y of rows without a residual, kRows at a time: gamma and beta are read and widened once for all of them. Those of long rows come
// from L2 each time. `last - first` is a multiple of kRows.
template <class T, Norm kNorm, int kRows>
void normalise_together(const norm::Problem& a, long long first, long long last) {
  for (long long m = first; m < last; m += kRows) {
    const T* x[kRows];
    T* y[kRows];
    vf mean[kRows], inverse[kRows], shift[kRows];
    bool at_zero = true;
    TILEKILN_UNROLL(4) for (int r = 0; r < kRows; ++r) {
      x[r] = (const T*)a.x + (m + r) * a.x_row;
      y[r] = (T*)a.y + (m + r) * a.y_row;
      const Plain<T> row = {x[r]};
      const auto found =
          statistics<T, kNorm>(a, m + r, row, first_moments<T, kNorm, false>(row, a.columns, (T*)nullptr));
      mean[r] = found.mean, inverse[r] = found.inverse, shift[r] = found.shift;
      at_zero = at_zero && found.at_zero;
    }
    const long long next = a.fetch_ahead && m + 2 * kRows <= a.rows ? kRows * a.x_row : 0;
    const auto write = [&]<bool kAtZero>() __attribute__((always_inline)) {
      const T *gamma = (const T*)a.gamma, *beta = (const T*)a.beta;
      twos(a.columns, [&](int j, int, int left) __attribute__((always_inline)) {
        const Factors factors = factors_at<T, kNorm>(gamma, beta, j, left);
        TILEKILN_UNROLL(4) for (int r = 0; r < kRows; ++r) {
          const Two v =
              normalised<T, kNorm, kAtZero>(widen_two<T>(x[r] + j, left), mean[r], inverse[r], shift[r], factors);
          prefetch_two(x[r] + next + j);  // of this row where none follows: no branch, 1.03 times as fast in L1
          narrow_two<T>(y[r] + j, v, left);
        }
      });
    };
    if (kNorm == Norm::layer && kEvenOdd<T> && at_zero)
      write.template operator()<true>();
    else
      write.template operator()<false>();
  }
}

// y, of the type of x.
template <class T, Norm kNorm, bool kStreaming>
void normalise_rows(const norm::Problem& a, long long first, long long last) {
  each_row<T, kNorm>(a, first, last, [&](long long m, auto from, auto normalised) __attribute__((always_inline)) {
    T* y = (T*)a.y + m * a.y_row;
    // Elements of the next row, on their way into the cache: the second walk over this one leaves memory idle.
    const long long next = m + 1 < a.rows ? m + 1 : m;
    const T* ahead = (const T*)a.x + next * a.x_row;
    const T* residual_ahead = a.residual ? (const T*)a.residual + next * a.residual_row : nullptr;
    const auto write = [&]<bool kAtZero>() __attribute__((always_inline)) {
      twos(a.columns, [&](int j, int, int left) __attribute__((always_inline)) {
        const Two v = normalised.template of<kAtZero>(from(j, left), j, left);
        if constexpr (kStreaming) {
          prefetch_two(ahead + j);
          if (residual_ahead) prefetch_two(residual_ahead + j);
          stream_two<T>(y + j, v);
        } else {
          narrow_two<T>(y + j, v, left);
        }
      });
    };
    if (kNorm == Norm::layer && kEvenOdd<T> && normalised.at_zero)
      write.template operator()<true>();
    else
      write.template operator()<false>();
  });
  if constexpr (kStreaming) stream_end();
}
template <class T, Norm kNorm> void normalise(const norm::Problem& a, long long first, long long last) {
  if (!a.streaming && !a.residual) {
    // Four rows of layernorm2d: 1.02 to 1.2 times as fast as two, unless the next ones are to lie in L1 beside them; of rmsnorm2d no
    // faster.
    if (kNorm == Norm::layer && !a.fetch_ahead) {
      const long long whole = first + (last - first) / 4 * 4;
      normalise_together<T, kNorm, 4>(a, first, whole);
      first = whole;
    }
    // Long rows that come from L3 go alone: rmsnorm2d 1.03 to 1.3 times as fast, layernorm2d of bf16 1.1, of fp16 .96. So do rows of
    // fp32 in rmsnorm2d, whose gamma need not be widened, 1.04 to 1.14, and in layernorm2d of 768 columns and more that come from L3 or
    // memory, 1.2 to 1.5 on Zen 4; two together win up to 1.3 where rows are short or lie in L2.
    const bool from_l3 = a.fetch_ahead && a.columns >= (sizeof(T) == sizeof(float) ? 768 : 4096);
    const bool alone =
        sizeof(T) == sizeof(float) ? kNorm != Norm::layer || from_l3 : from_l3 && (kNorm != Norm::layer || kEvenOdd<T>);
    const long long even = alone ? first : first + (last - first) / 2 * 2;
    normalise_together<T, kNorm, 2>(a, first, even);
    return normalise_together<T, kNorm, 1>(a, even, last);
  }
  (a.streaming ? normalise_rows<T, kNorm, true> : normalise_rows<T, kNorm, false>)(a, first, last);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
