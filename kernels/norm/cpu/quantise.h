// SPDX-License-Identifier: MIT
// Rows of numbers as int8 or fp8 and a scale each: scale = max |v| / largest, q = v / scale rounded to nearest even.
#pragma once
#include <type_traits>

#include "kernels/backends/cpu/saturate.h"
#include "kernels/norm/cpu/rows.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kKept = 4096;  // columns whose fp32 values lie in L1 beside the row; longer rows are computed twice
constexpr float kLeast = 0x1p-100f;  // what is less everywhere counts as 0: its scale would leave fp32's normal numbers

// fp8 by a function that is no part of its callers: 16 scalar conversions in each loop were three quarters of a library.
struct called_fp8 { fp8 value; };
[[gnu::noinline]] inline void narrow(called_fp8* p, vf a) { narrow((saturated_fp8*)p, a); }

[[gnu::noinline]] inline void narrow_even_odd(called_fp8* p, vf even, vf odd) {
  alignas(64) float halves[kTwo], row[kTwo];
  store(halves, even), store(halves + kLanes, odd);
  for (int i = 0; i < kLanes; ++i) row[2 * i] = halves[i], row[2 * i + 1] = halves[kLanes + i];
  narrow(p, load(row)), narrow(p + kLanes, load(row + kLanes));
}

// Rows on their way into the cache while another is walked twice: the first half of them in one walk, the second in the other, so
// that memory is asked all the time.
template <class T> struct Ahead {
  const T *x = nullptr, *residual = nullptr;

  TILEKILN_INLINE void at(int j) const {
    if (x) fetch((const char*)x + j * (long long)sizeof(T) / 2);
    if (residual) fetch((const char*)residual + j * (long long)sizeof(T) / 2);
  }
  TILEKILN_INLINE Ahead second(int columns) const {
    return {x ? x + columns / 2 : x, residual ? residual + columns / 2 : residual};
  }

 private:
  static TILEKILN_INLINE void fetch(const char* p) {
    for (int i = 0; i < kTwo * int(sizeof(T)) / 2; i += 64) __builtin_prefetch(p + i);
  }
};

// Numbers of a row that are kept, times `by`, as Q; with `stream` around the caches, where the row is whole (stream_end behind the
// last). A function of its own: it is the same behind every way to make a number.
template <class T, class Q>
[[gnu::noinline]] void put_kept(void* to, const float* kept, int columns, float by, Ahead<T> ahead, bool stream) {
  const vf factor = broadcast(by);
  const auto scaled = [&](int j) __attribute__((always_inline)) {
    return mul(Two{load(kept + j), load(kept + j + kLanes)}, factor);
  };
  if constexpr (std::is_same_v<Q, signed char>) {
    if (stream && columns % kTwo == 0 && (unsigned long long)to % 16 == 0) {
      for (int j = 0; j < columns; j += kTwo) {
        ahead.at(j);
        stream_two<T>((Q*)to + j, scaled(j));
      }
      return;
    }
  }
  twos(columns, [&](int j, int, int left) __attribute__((always_inline)) {
    ahead.at(j);
    narrow_two<T>((Q*)to + j, scaled(j), left);
  });
}
template <class T>
TILEKILN_INLINE void put_kept(void* to, int y_dtype, const float* kept, int columns, float by, Ahead<T> ahead,
                              bool stream) {
  (y_dtype ? put_kept<T, called_fp8> : put_kept<T, signed char>)(to, kept, columns, by, ahead, stream);
}

// value(column, how many elements are left) of a row, called once for each where a row can be kept, else twice; to y_dtype, by value
// of the axis: int8, fp8. A row that holds a NaN or an infinity has the scale NaN and zeros; so has a row of zeros, with the scale 0.
template <class T, class Value>
TILEKILN_INLINE float quantise_row(int columns, void* to, int y_dtype, Value&& value, Ahead<T> ahead = {},
                                   bool stream = false) {
  const float largest = y_dtype ? 448 : 127;
  alignas(64) float kept[kKept];
  Two top[2] = {both_of(zero()), both_of(zero())};
  const bool keep = columns <= kKept;
  twos(columns, [&](int j, int i, int left) __attribute__((always_inline)) {
    const Two v = value(j, left);
    ahead.at(j);
    if (keep) {
      store(kept + j, v.a);
      store(kept + j + kLanes, v.b);
    }
    top[i] = max_magnitude(top[i], v);
  });
  const Two highest_two = max_magnitude(top[0], top[1]);
  const vf highest_one = max_magnitude(highest_two.a, highest_two.b);
  const float most = highest(highest_one);
  const bool finite = !any_above(highest_one, broadcast(3.40282347e38f));
  if (!finite || most < kLeast) {
    __builtin_memset(to, 0, columns);
    return finite ? 0 : __builtin_nanf("");
  }
  const float by = largest / most;
  const Ahead<T> rest = ahead.second(columns);
  if (keep) {
    put_kept<T>(to, y_dtype, kept, columns, by, rest, stream);
  } else if (!y_dtype) {
    const vf factor = broadcast(by);
    twos(columns, [&](int j, int, int left) __attribute__((always_inline)) {
      rest.at(j);
      narrow_two<T>((signed char*)to + j, mul(value(j, left), factor), left);
    });
  } else {
    twos<1>(columns, [&](int j, int, int left) __attribute__((always_inline)) {
      const Two v = value(j, left);
      store(kept, v.a);
      store(kept + kLanes, v.b);
      rest.at(j);
      put_kept<T, called_fp8>((called_fp8*)to + j, kept, left < kTwo ? left : kTwo, by, {}, false);
    });
  }
  return most / largest;
}

// The rows behind row m, where they come from memory.
template <class T> TILEKILN_INLINE Ahead<T> behind(const norm::Problem& a, long long m) {
  if (!a.fetch_ahead || m + 1 >= a.rows) return {};
  return {(const T*)a.x + (m + 1) * a.x_row, a.residual ? (const T*)a.residual + (m + 1) * a.residual_row : nullptr};
}

// A normalised row, times smooth_scale where given; unquantised is it before that.
template <class T, Norm kNorm, class From>
[[gnu::noinline]] void quantise_found(const norm::Problem& a, long long m, From from, Normalised<T, kNorm> normalised) {
  T* plain = a.unquantised ? (T*)a.unquantised + m * a.unquantised_row : nullptr;
  const float* smooth = a.smooth_scale;
  a.y_scale[m] = quantise_row<T>(
      a.columns, (char*)a.y + m * a.y_row, a.y_dtype,
      [&](int j, int left) __attribute__((always_inline)) {
        Two v = normalised(from(j, left), j, left);
        if (plain) narrow_two<T>(plain + j, v, left);
        if (smooth) v = mul(v, widen_two<T>(smooth + j, left));
        return v;
      },
      behind<T>(a, m), a.y_streaming);
}

template <class T, Norm kNorm> void quantise(const norm::Problem& a, long long first, long long last) {
  each_row<T, kNorm>(a, first, last, [&](long long m, auto from, auto normalised) __attribute__((always_inline)) {
    quantise_found<T, kNorm>(a, m, from, normalised);
  });
  if (a.y_streaming) stream_end();
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
