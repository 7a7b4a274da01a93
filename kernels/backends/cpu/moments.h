// SPDX-License-Identifier: MIT
// Moments of a row: sums of its elements and of their squares. They are four vectors, added pairwise at the end of the row, so their
// bits do not depend on threads.
#pragma once

#include "kernels/backends/cpu/twos.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Sums of a row: eight vectors, for two additions begin each cycle and take four to six.
constexpr int kSums = 4;
struct Sums {
  Two of[kSums];
  TILEKILN_INLINE Sums() {
    for (Two& one : of) one = both_of(zero());
  }
  TILEKILN_INLINE float total() const {
    const Two sum = add(add(of[0], of[1]), add(of[2], of[3]));
    return cpu::total(add(sum.a, sum.b));
  }
};

// The elements of a row.
template <class T> struct Plain {
  const T* x;
  TILEKILN_INLINE Two operator()(int j, int left) const { return widen_two<T>(x + j, left); }
#if TILEKILN_PAIRS
  TILEKILN_INLINE vh halves(int j, int left) const {
    return left >= kTwo ? load_halves(x + j) : load_halves(x + j, left);
  }
#endif
};

// Sums of a row's deviations from `centre`: for a layer of any number near its elements, else of 0 and of squares alone.
struct Moments { float centre, sum, squares; };

// `stored`, where kStore, receives the elements. A function of its own, for it is called from several places.
template <class T, bool kLayer, bool kStore, class From>
[[gnu::noinline]] Moments moments(From from, int columns, float centre, T* stored) {
  Sums sum, squares;
  const vf c = broadcast(centre);
  twos<kSums>(columns, [&](int j, int i, int left) __attribute__((always_inline)) {
    const Two v = from(j, left);
    const Two d = kLayer ? existing<T>(left, sub(v, c), zero()) : v;
    if constexpr (kLayer) sum.of[i] = add(sum.of[i], d);
    squares.of[i] = fma(d, d, squares.of[i]);
    if constexpr (kStore) narrow_two<T>(stored + j, v, left);
  });
  return {centre, kLayer ? sum.total() : 0, squares.total()};
}

#if TILEKILN_PAIRS
// Moments about 0 of a row of bf16, whose products are exact, by its pairs: one operation a sum for 32 elements. What lies far
// from 1 is left to the caller (false): the instruction takes subnormal numbers as 0.
template <bool kLayer, bool kStore, class From>
TILEKILN_INLINE bool moments_of_pairs(const From& from, int columns, bf16* stored, Moments& of) {
  Sums sum, squares;
  const vf ones = pairs_of_ones();
  twos<2 * kSums>(columns, [&](int j, int i, int left) __attribute__((always_inline)) {
    const vh v = from.halves(j, left);
    const auto half = [i](Sums& sums)
                          __attribute__((always_inline)) -> vf& { return i % 2 ? sums.of[i / 2].b : sums.of[i / 2].a; };
    if constexpr (kLayer) half(sum) = dot_pair(half(sum), words(v), ones);
    half(squares) = dot_pair(half(squares), words(v), words(v));
    if constexpr (kStore) store_halves(stored + j, v, left);
  });
  of = {0, kLayer ? sum.total() : 0, squares.total()};
  return of.squares >= 0x1p-80f && of.squares <= 0x1p120f;
}
#endif

// The sum of the squares of a row.
template <class T> TILEKILN_INLINE float squares_of(const Plain<T>& from, int columns) {
#if TILEKILN_PAIRS
  if constexpr (kEvenOdd<T>) {
    Moments of;
    if (moments_of_pairs<false, false>(from, columns, (bf16*)nullptr, of)) return of.squares;
  }
#endif
  return moments<T, false, false>(from, columns, 0, (T*)nullptr).squares;
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
