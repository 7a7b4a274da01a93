// SPDX-License-Identifier: MIT
// The rows engine of smoothquant for one target. To int8 rows are multiplied again when they are written: to keep them would take
// more of L1 than is there. Those of 16 bits are taken two at a time, so that smooth_scale is read and put in order once for both; so
// are those of fp32 that L1 does not hold beside it, 1.2 to 1.4 times as fast (shorter ones: .8 to .9).
#include "kernels/norm/cpu/quantise.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// Rows [m, m + kRows); false, with nothing written, where one has no scale.
template <class T, int kRows, bool kSmooth> bool smooth_rows(const norm::Problem& a, long long m) {
  const T* x[kRows];
  signed char* y[kRows];
  Ahead<T> ahead[kRows], rest[kRows];
  bool stream = a.y_streaming && a.columns % kTwo == 0;
  for (int r = 0; r < kRows; ++r) {
    x[r] = (const T*)a.x + (m + r) * a.x_row;
    y[r] = (signed char*)a.y + (m + r) * a.y_row;
    ahead[r] = behind<T>(a, m + r + kRows - 1);
    rest[r] = ahead[r].second(a.columns);
    stream = stream && (unsigned long long)y[r] % 16 == 0;
  }
  const float* smooth = a.smooth_scale;
  // value(row, its elements from column j, times smooth_scale) for each row.
  const auto each = [&](int j, int left, auto&& value) __attribute__((always_inline)) {
    Two factors;
    if constexpr (kSmooth) factors = widen_two<T>(smooth + j, left);
    TILEKILN_UNROLL(2) for (int r = 0; r < kRows; ++r) {
      Two v = widen_two<T>(x[r] + j, left);
      if constexpr (kSmooth) v = mul(v, factors);
      value(r, v);
    }
  };
  Two top[kRows][2];
  for (int r = 0; r < kRows; ++r) top[r][0] = top[r][1] = both_of(zero());
  const auto measure = [&]<bool kAhead>() __attribute__((always_inline)) {
    twos(a.columns, [&](int j, int i, int left) __attribute__((always_inline)) {
      each(j, left, [&](int r, Two v) __attribute__((always_inline)) {
        top[r][i] = max_magnitude(top[r][i], v);
        if constexpr (kAhead) ahead[r].at(j);
      });
    });
  };
  a.fetch_ahead ? measure.template operator()<true>() : measure.template operator()<false>();
  vf by[kRows];
  float scale[kRows];
  for (int r = 0; r < kRows; ++r) {
    const Two two = max_magnitude(top[r][0], top[r][1]);
    const vf one = max_magnitude(two.a, two.b);
    const float most = highest(one);
    if (any_above(one, broadcast(3.40282347e38f)) || most < kLeast) return false;
    by[r] = broadcast(127 / most);
    scale[r] = most / 127;
  }
  const auto write = [&]<bool kAhead>() __attribute__((always_inline)) {
    twos(a.columns, [&](int j, int, int left) __attribute__((always_inline)) {
      each(j, left, [&](int r, Two v) __attribute__((always_inline)) {
        const Two q = mul(v, by[r]);
        if constexpr (kAhead) rest[r].at(j);
        stream ? stream_two<T>(y[r] + j, q) : narrow_two<T>(y[r] + j, q, left);
      });
    });
  };
  a.fetch_ahead ? write.template operator()<true>() : write.template operator()<false>();
  for (int r = 0; r < kRows; ++r) a.y_scale[m + r] = scale[r];
  return true;
}

template <class T> void rows(const norm::Problem& a, long long first, long long last) {
  if (a.y_dtype) return quantise<T, Norm::none>(a, first, last);
  const auto two = a.smooth_scale ? smooth_rows<T, 2, true> : smooth_rows<T, 2, false>;
  const auto one = a.smooth_scale ? smooth_rows<T, 1, true> : smooth_rows<T, 1, false>;
  for (long long m = first; m < last;) {
    const int many = (sizeof(T) < sizeof(float) || a.columns > 4096) && last - m >= 2 ? 2 : 1;
    if (!(many == 2 ? two : one)(a, m)) quantise<T, Norm::none>(a, m, m + many);
    m += many;
  }
  if (a.y_streaming) stream_end();
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _smoothquant_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::rows<float>, tilekiln::cpu::rows<tilekiln::cpu::fp16>, tilekiln::cpu::rows<tilekiln::cpu::bf16>}};
