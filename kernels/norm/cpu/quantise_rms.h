// SPDX-License-Identifier: MIT
// Rows of rmsnorm2d, quantised in two walks: 1 / rms is one factor of a row, and so of its largest element. v gamma is made, measured
// and kept beside the sum of squares.
#pragma once

#include "kernels/norm/cpu/quantise.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Elements of a row and, where `stored` is, their way there; `around` the caches, whole lines then.
template <class T, class From>
TILEKILN_INLINE Two taken(const From& from, int j, int left, T* stored, bool around) {
#if TILEKILN_PAIRS
  if constexpr (kEvenOdd<T>) {
    const vh halves = from.halves(j, left);
    if (stored) around ? stream_halves(stored + j, halves) : store_halves(stored + j, halves, left);
    Two v;
    even_odd(halves.v, v.a, v.b);
    return v;
  }
#endif
  const Two v = from(j, left);
  if (stored) around ? stream_two<T>(stored + j, v) : narrow_two<T>(stored + j, v, left);
  return v;
}

// False, with nothing written but `stored`: fp32 holds the row's largest v gamma with few digits or not at all, or the row has none.
template <class T, class From>
TILEKILN_INLINE bool quantise_unscaled(const norm::Problem& a, long long m, const From& from, T* stored) {
  const T* gamma = (const T*)a.gamma;
  const float* smooth = a.smooth_scale;
  const Ahead<T> ahead = behind<T>(a, m);
  alignas(64) float kept[kKept];
  Two squares[2] = {both_of(zero()), both_of(zero())}, top[2] = {both_of(zero()), both_of(zero())};
  twos(a.columns, [&](int j, int i, int left) __attribute__((always_inline)) {
    const Two v = taken<T>(from, j, left, stored, a.sum_streaming);
    ahead.at(j);
    squares[i] = fma(v, v, squares[i]);
    Two w = mul(v, widen_two<T>(gamma + j, left));
    if (smooth) w = mul(w, widen_two<T>(smooth + j, left));
    store(kept + j, w.a);
    store(kept + j + kLanes, w.b);
    top[i] = max_magnitude(top[i], w);
  });
  const Two highest_two = max_magnitude(top[0], top[1]), sum = add(squares[0], squares[1]);
  const vf highest_one = max_magnitude(highest_two.a, highest_two.b);
  const float most = highest(highest_one);
  const float inverse = 1 / __builtin_sqrtf(total(add(sum.a, sum.b)) / float(a.columns) + a.epsilon);
  const float largest = a.y_dtype ? 448 : 127, scaled = most * inverse;
  if (any_above(highest_one, broadcast(0x1p100f))) return false;
  if (!(most >= 0x1p-60f && scaled >= kLeast && scaled <= 0x1p120f)) return false;
  if (a.inverse) a.inverse[m] = inverse;
  a.y_scale[m] = scaled / largest;
  put_kept<T>((char*)a.y + m * a.y_row, a.y_dtype, kept, a.columns, largest / most, ahead.second(a.columns),
              a.y_streaming);
  return true;
}

// A row in the way of all norms.
template <class T, class From>
[[gnu::noinline]] void quantise_scaled(const norm::Problem& a, long long m, From from) {
  const Moments of = first_moments<T, Norm::rms, false>(from, a.columns, (T*)nullptr);
  quantise_found<T, Norm::rms>(a, m, from, statistics<T, Norm::rms>(a, m, from, of));
}

template <class T> void quantise_rms(const norm::Problem& a, long long first, long long last) {
  if (a.unquantised || a.columns > kKept) return quantise<T, Norm::rms>(a, first, last);
  for (long long m = first; m < last; ++m) {
    const T* x = (const T*)a.x + m * a.x_row;
    if (!a.residual) {
      if (!quantise_unscaled<T>(a, m, Plain<T>{x}, (T*)nullptr)) quantise_scaled<T>(a, m, Plain<T>{x});
      continue;
    }
    const Added<T> added = {x, (const T*)a.residual + m * a.residual_row};
    T* stored = a.residual_out ? (T*)a.residual_out + m * a.residual_out_row : nullptr;
    if (quantise_unscaled<T>(a, m, added, stored)) continue;
    stored ? quantise_scaled<T>(a, m, Plain<T>{stored}) : quantise_scaled<T>(a, m, added);
  }
  if (a.y_streaming || a.sum_streaming) stream_end();
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
