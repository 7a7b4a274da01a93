// SPDX-License-Identifier: MIT
// A row as twos of vectors, in the order in which its type T widens fastest: bf16's even elements, then its odd ones; else in
// order. Every array beside a row is read in the order of T.
#pragma once

#include "kernels/backends/cpu/load.h"
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace tilekiln::cpu::inline TILEKILN_TARGET {

struct Two { vf a, b; };
constexpr int kTwo = 2 * kLanes;
template <class T> constexpr bool kEvenOdd = false;
template <> inline constexpr bool kEvenOdd<bf16> = true;

TILEKILN_INLINE Two both_of(vf a) { return {a, a}; }
TILEKILN_INLINE Two add(Two x, Two y) { return {add(x.a, y.a), add(x.b, y.b)}; }
TILEKILN_INLINE Two sub(Two x, vf y) { return {sub(x.a, y), sub(x.b, y)}; }
TILEKILN_INLINE Two mul(Two x, Two y) { return {mul(x.a, y.a), mul(x.b, y.b)}; }
TILEKILN_INLINE Two mul(Two x, vf y) { return {mul(x.a, y), mul(x.b, y)}; }
TILEKILN_INLINE Two fma(Two x, Two y, Two z) { return {fma(x.a, y.a, z.a), fma(x.b, y.b, z.b)}; }
TILEKILN_INLINE Two fma(Two x, vf y, vf z) { return {fma(x.a, y, z), fma(x.b, y, z)}; }
TILEKILN_INLINE Two max(Two x, Two y) { return {max(x.a, y.a), max(x.b, y.b)}; }
TILEKILN_INLINE Two max_magnitude(Two so_far, Two x) {
  return {max_magnitude(so_far.a, x.a), max_magnitude(so_far.b, x.b)};
}

// kTwo elements of `From` beside a row of T.
template <class T, class From> TILEKILN_INLINE Two widen_two(const From* p) {
  if constexpr (kEvenOdd<T>) {
    Two r;
    even_odd(p, r.a, r.b);
    return r;
  } else {
    return {widen(p), widen(p + kLanes)};
  }
}
template <class T, class To> TILEKILN_INLINE void narrow_two(To* p, Two x) {
  if constexpr (kEvenOdd<T>) {
    narrow_even_odd(p, x.a, x.b);
  } else {
    narrow(p, x.a);
    narrow(p + kLanes, x.b);
  }
}

// The first `left` >= 1 elements exist; the others read as 0 and are not written.
template <class T, class From> TILEKILN_INLINE Two widen_two(const From* p, int left) {
  if (left >= kTwo) return widen_two<T>(p);
  Part<From, kTwo> part;
  part.read(p, left);
  return widen_two<T>(part.row);
}
template <class T, class To> TILEKILN_INLINE void narrow_two(To* p, Two x, int left) {
  if (left >= kTwo) return narrow_two<T>(p, x);
  Part<To, kTwo> part;
  narrow_two<T>(part.row, x);
  part.write(p, left);
}

// The even elements of kTwo, and the odd ones, whatever the type; of the first `left` >= 1.
template <class T> TILEKILN_INLINE Two widen_pairs(const T* p, int left) {
  if constexpr (kEvenOdd<T>) return widen_two<T>(p, left);
  const Two in_order = widen_two<T>(p, left);
  float wide[kTwo];
  store_unaligned(wide, in_order.a), store_unaligned(wide + kLanes, in_order.b);
  Two of;
  even_odd(wide, of.a, of.b);
  return of;
}
template <class T> TILEKILN_INLINE void narrow_pairs(T* p, Two of, int left) {
  if constexpr (kEvenOdd<T>) return narrow_two<T>(p, of, left);
  float even[kLanes], odd[kLanes], wide[kTwo];
  store_unaligned(even, of.a), store_unaligned(odd, of.b);
  for (int k = 0; k < kLanes; ++k) wide[2 * k] = even[k], wide[2 * k + 1] = odd[k];
  narrow_two<T>(p, {load_unaligned(wide), load_unaligned(wide + kLanes)}, left);
}

TILEKILN_INLINE lane_bits first_lanes(int n) {
  return lane_bits(n >= kLanes ? (1u << kLanes) - 1 : n <= 0 ? 0 : (1u << n) - 1);
}
// `none` in lanes that do not exist.
template <class T> TILEKILN_INLINE Two existing(int left, Two x, vf none) {
  if (left >= kTwo) return x;
  const int first = kEvenOdd<T> ? (left + 1) / 2 : left, second = kEvenOdd<T> ? left / 2 : left - kLanes;
  return {select(first_lanes(first), x.a, none), select(first_lanes(second), x.b, none)};
}

// Rounds a pair to what it is after having been stored.
template <class T> TILEKILN_INLINE Two rounded(Two x) {
  if constexpr (sizeof(T) == sizeof(float)) return x;
  if constexpr (kEvenOdd<T>) {
    round_even_odd(x.a, x.b);
    return x;
  }
  T row[kTwo];
  narrow_two<T>(row, x);
  return widen_two<T>(row);
}

// Stores as narrow_two, around the caches, to the beginning of a cache line. After the last: stream_end.
template <class T> TILEKILN_INLINE void stream_two(T* p, Two x) {
#if defined(__SSE2__)
  alignas(64) T row[kTwo];
  narrow_two<T>(row, x);
#if defined(__AVX512F__)
  for (int i = 0; i < int(sizeof row); i += 64)
    _mm512_stream_si512((__m512i*)((char*)p + i), _mm512_load_si512((char*)row + i));
#else
  for (int i = 0; i < int(sizeof row); i += 16)
    _mm_stream_si128((__m128i*)((char*)p + i), _mm_load_si128((const __m128i*)((char*)row + i)));
#endif
#else
  narrow_two<T>(p, x);
#endif
}
// Bytes, to a multiple of 16.
template <class T> TILEKILN_INLINE void stream_two(signed char* p, Two x) {
#if defined(__SSE2__)
  static_assert(kTwo % 16 == 0 || kTwo == 8);
  alignas(16) signed char row[kTwo < 16 ? 16 : kTwo];
  narrow_two<T>(row, x);
  if constexpr (kTwo < 16) {
    __builtin_memcpy(p, row, kTwo);
  } else {
    for (int i = 0; i < kTwo; i += 16) _mm_stream_si128((__m128i*)(p + i), _mm_load_si128((const __m128i*)(row + i)));
  }
#else
  narrow_two<T>(p, x);
#endif
}
template <class T> TILEKILN_INLINE void prefetch_two(const T* p) {
  for (int i = 0; i < kTwo * int(sizeof(T)); i += 64) __builtin_prefetch((const char*)p + i);
}
TILEKILN_INLINE void stream_end() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// f(column, which of kSums accumulators, how many elements are left) for all twos of a row. The order is the row's alone.
template <int kSums = 2, class F> TILEKILN_INLINE void twos(int columns, F&& f) {
  int j = 0;
  for (; j <= columns - kSums * kTwo; j += kSums * kTwo) {
    TILEKILN_UNROLL(8) for (int i = 0; i < kSums; ++i) f(j + i * kTwo, i, kTwo);
  }
  for (; j < columns; j += kTwo) f(j, 0, columns - j);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
