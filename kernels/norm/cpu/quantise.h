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

// Numbers of a row that are kept, times `by`, as Q. A function of its own: it is the same behind every way to make a number.
template <class T, class Q> [[gnu::noinline]] void put_kept(void* to, const float* kept, int columns, float by,
                                                            const T* ahead, bool stream) {
  const vf factor = broadcast(by);
  const auto scaled = [&](int j) __attribute__((always_inline)) {
    return mul(Two{load(kept + j), load(kept + j + kLanes)}, factor);
  };
  if constexpr (std::is_same_v<Q, signed char>) {
    if (stream && ahead && columns % kTwo == 0 && (unsigned long long)to % 16 == 0) {
      for (int j = 0; j < columns; j += kTwo) {
        prefetch_two(ahead + j);
        stream_two<T>((Q*)to + j, scaled(j));
      }
      return stream_end();
    }
  }
  twos(columns, [&](int j, int, int left) __attribute__((always_inline)) {
    if (ahead) prefetch_two(ahead + j);
    narrow_two<T>((Q*)to + j, scaled(j), left);
  });
}

// value(column, how many elements are left) of a row, called once for each where a row can be kept, else twice; to y_dtype, by value
// of the axis: int8, fp8. A row that holds a NaN or an infinity has the scale NaN and zeros; so has a row of zeros, with the scale 0.
// ahead, where given: a row that is fetched into the cache while this one, which needs no memory any more, is written; with `stream`
// around the caches, where it can be kept and is whole.
template <class T, class Value>
TILEKILN_INLINE float quantise_row(int columns, void* to, int y_dtype, Value&& value, const T* ahead = nullptr,
                                   bool stream = false) {
  const float largest = y_dtype ? 448 : 127;
  alignas(64) float kept[kKept];
  Two top[2] = {both_of(zero()), both_of(zero())};
  const bool keep = columns <= kKept;
  twos(columns, [&](int j, int i, int left) __attribute__((always_inline)) {
    const Two v = value(j, left);
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
  if (keep) {
    (y_dtype ? put_kept<T, called_fp8> : put_kept<T, signed char>)(to, kept, columns, by, ahead, stream);
  } else if (!y_dtype) {
    const vf factor = broadcast(by);
    twos(columns, [&](int j, int, int left) __attribute__((always_inline)) {
      if (ahead) prefetch_two(ahead + j);
      narrow_two<T>((signed char*)to + j, mul(value(j, left), factor), left);
    });
  } else {
    twos<1>(columns, [&](int j, int, int left) __attribute__((always_inline)) {
      const Two v = value(j, left);
      store(kept, v.a);
      store(kept + kLanes, v.b);
      put_kept<T, called_fp8>((called_fp8*)to + j, kept, left < kTwo ? left : kTwo, by, ahead ? ahead + j : ahead,
                              false);
    });
  }
  return most / largest;
}

// Normalised rows, times smooth_scale where given; unquantised are they before that.
template <class T, Norm kNorm> void quantise(const norm::Problem& a, long long first, long long last) {
  each_row<T, kNorm>(a, first, last, [&](long long m, auto from, auto normalised) __attribute__((always_inline)) {
    T* plain = a.unquantised ? (T*)a.unquantised + m * a.unquantised_row : nullptr;
    a.y_scale[m] = quantise_row<T>(
        a.columns, (char*)a.y + m * a.y_row, a.y_dtype,
        [&](int j, int left) __attribute__((always_inline)) {
          Two v = normalised(from(j, left), j, left);
          if (plain) narrow_two<T>(plain + j, v, left);
          if (a.smooth_scale) v = mul(v, widen_two<T>(a.smooth_scale + j, left));
          return v;
        },
        a.streaming ? (const T*)a.x + (m + 1 < a.rows ? m + 1 : m) * a.x_row : nullptr, a.y_streaming);
  });
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
