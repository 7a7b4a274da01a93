// SPDX-License-Identifier: MIT
// Weights of numbers as the integers that the CPU makes (kernels/norm/sample/cpu/weights.h), each operation rounded as
// there. Numbers of 64 bits are integers alone.
#pragma once

#include "kernels/backends/cuda/ptx.h"

namespace tilekiln::cuda::sample {

constexpr float kLargest = 3.40282347e38f, kSmallest = 1.17549435e-38f;
constexpr float kFar = 42;            // t of what has the weight 0
constexpr float kWhole = 12582912.f;  // x + kWhole has round(x) in its low bits
constexpr unsigned kWholeBits = 0x4b400000u;
constexpr unsigned long long kLog2EWhole = 0x171547652b82feull;  // 2^52 log2(e), as fp64 has it
// x 2^-shift, rounded to nearest even; `more`: a part of x below its last bit.
TILEKILN_DEVICE unsigned long long shifted(unsigned long long x, int shift, bool more) {
  const unsigned long long half = 1ull << (shift - 1), low = x & (2 * half - 1), whole = x >> shift;
  return whole + (low > half || (low == half && (more || (whole & 1))) ? 1 : 0);
}
TILEKILN_DEVICE float power_of_two(int n) { return __uint_as_float(unsigned(127 + n) << 23); }

// log2(e) / temperature, rounded to fp64 and then to fp32, from kSmallest to kLargest.
TILEKILN_DEVICE float by_of(float temperature) {
  const unsigned bits = __float_as_uint(temperature);
  int down = int(bits >> 23) - 150;  // temperature = by 2^down, by from 2^23 to 2^24
  unsigned by = (bits & 0x7fffffu) | 0x800000u;
  if (bits < 0x800000u) {
    const int zeros = __clz(bits) - 8;
    by = bits << zeros, down = -149 - zeros;
  }
  const unsigned long long first = (kLog2EWhole << 10) / by, rest = (kLog2EWhole << 10) % by << 24;
  const unsigned long long quotient = first << 24 | rest / by;  // from 2^62 to 2^64
  const int dropped = quotient >> 63 ? 11 : 10;
  const unsigned long long wide = shifted(quotient, dropped, rest % by != 0);
  const float narrow = float(unsigned(shifted(wide, 29, false)));  // exact
  const int up = dropped + 29 - 86 - down;
  return fminf(kLargest, fmaxf(kSmallest, narrow * power_of_two(up / 2) * power_of_two(up - up / 2)));
}

struct Weigher {
  float top, by;

  // floor(2^40 2^-t), t = (top - v) by.
  __device__ __forceinline__ unsigned long long operator()(float v) const {
    const float t = fminf(kFar, __fmul_rn(__fsub_rn(top, v), by));
    const float sum = __fadd_rn(t, kWhole), fraction = __fsub_rn(__fsub_rn(sum, kWhole), t);
    // Coefficients of 2^x, x from -1/2 to 1/2.
    constexpr float power[] = {
        1.f, 6.931470633e-01f, 2.402223498e-01f, 5.550676212e-02f, 9.671960957e-03f, 1.327463891e-03f};
    float y = power[5];
#pragma unroll
    for (int d = 4; d >= 0; --d) y = __fadd_rn(__fmul_rn(y, fraction), power[d]);
    const unsigned bits = __float_as_uint(y), down = __float_as_uint(sum) - kWholeBits + 127 - (bits >> 23);
    return (unsigned long long)((bits & 0x7fffffu) | 0x800000u) << 17 >> down;
  }
};

// A number as a word of the same order, and back.
TILEKILN_DEVICE unsigned ordered(float v) {
  const unsigned bits = __float_as_uint(v);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
TILEKILN_DEVICE float number_of(unsigned word) { return __uint_as_float(word >> 31 ? word & 0x7fffffffu : ~word); }

// 2^40 share of a share from 0 to 1: cut, or the next integer above.
TILEKILN_DEVICE unsigned long long of_whole(float share, bool above) {
  const unsigned bits = __float_as_uint(share);
  const int up = max(int(bits >> 23), 1) - 110;
  const unsigned long long mantissa = (bits & 0x7fffffu) | (bits >> 23 ? 0x800000u : 0u);
  if (up >= 0) return mantissa << up;
  const int down = min(-up, 63);
  return (mantissa >> down) + (above && (mantissa & ((1ull << down) - 1)) ? 1 : 0);
}

// log(w / 2^40) of w >= 2^40.
TILEKILN_DEVICE float log_of(unsigned long long w) {
  const int e = 63 - __clzll((long long)w);
  return float(e - 40) * 0.693147181f + logf(float(unsigned(w >> (e - 23))) * 0x1p-23f);
}

}  // namespace tilekiln::cuda::sample
