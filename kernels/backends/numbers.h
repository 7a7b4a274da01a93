// SPDX-License-Identifier: MIT
// Storage types and their scalar conversions: fp16, bf16, fp8 (OCP e4m3) and bf8 (OCP e5m2), bit for bit.
//
// Narrowing rounds to nearest, ties to even. fp16, bf16 and bf8 overflow to infinity; fp8 has no infinity and overflows
// to NaN, as OCP's non-saturating conversion does. NaN stays NaN (quiet).
#pragma once

#include <cstdint>

#include "kernels/backends/target.h"

namespace tilekiln::core::inline TILEKILN_TARGET {

struct fp16 { uint16_t bits; };
struct bf16 { uint16_t bits; };
struct fp8 { uint8_t bits; };
struct bf8 { uint8_t bits; };

inline uint32_t bits_of(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// A small float format: sign, exponent bits, mantissa bits, and whether the largest exponent means infinity and NaN (IEEE)
// or holds numbers too, with NaN only where all bits are set (e4m3).
template <int ExponentBits, int MantissaBits, bool Ieee> struct Format {
  static constexpr int kBias = (1 << (ExponentBits - 1)) - 1;
  static constexpr int kShift = 23 - MantissaBits;
  static constexpr uint32_t kMagnitude = (1u << (ExponentBits + MantissaBits)) - 1;
  static constexpr uint32_t kInfinity = ((1u << ExponentBits) - 1) << MantissaBits;  // IEEE formats only
  static constexpr uint32_t kNan = Ieee ? kInfinity | (1u << (MantissaBits - 1)) : kMagnitude;
  static constexpr uint32_t kLargest = Ieee ? kInfinity - 1 : kMagnitude - 1;

  static float widen(uint32_t bits) {
    const uint32_t sign = (bits >> (ExponentBits + MantissaBits)) << 31, magnitude = bits & kMagnitude;
    if (Ieee ? magnitude > kInfinity : magnitude == kNan) return float_of(sign | 0x7fc00000u);
    if (Ieee && magnitude == kInfinity) return float_of(sign | 0x7f800000u);
    // The fields moved under an fp32 exponent are the value times 2^(bias - 127): a product with a power of two is exact.
    const float scale = float_of(uint32_t(127 + 127 - kBias) << 23);
    return float_of(sign | bits_of(float_of(magnitude << kShift) * scale));
  }

  static uint32_t narrow(float x) {
    const uint32_t bits = bits_of(x), sign = (bits >> 31) << (ExponentBits + MantissaBits),
                   magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | kNan;
    const int exponent = int(magnitude >> 23) - 127 + kBias;  // of the result, before rounding
    uint32_t result;
    if (exponent >= 1) {
      const uint32_t rebiased = magnitude - (uint32_t(127 - kBias) << 23);
      result = (rebiased + (1u << (kShift - 1)) - 1 + (rebiased >> kShift & 1)) >> kShift;
    } else {  // subnormal: the hidden bit moves into the mantissa, shifted right by 1 - exponent more places
      const int shift = kShift + 1 - exponent;
      if (shift > 25) return sign;
      const uint32_t mantissa = (magnitude & 0x7fffffu) | (magnitude >> 23 ? 0x800000u : 0u);
      result = (mantissa + (1u << (shift - 1)) - 1 + (mantissa >> shift & 1)) >> shift;
    }
    if (result > kLargest) result = Ieee ? kInfinity : kNan;
    return sign | result;
  }
};

using Fp16 = Format<5, 10, true>;
using Fp8 = Format<4, 3, false>;
using Bf8 = Format<5, 2, true>;

inline float widen(float x) { return x; }
inline float widen(fp16 x) { return Fp16::widen(x.bits); }
inline float widen(bf16 x) { return float_of(uint32_t(x.bits) << 16); }
inline float widen(fp8 x) { return Fp8::widen(x.bits); }
inline float widen(bf8 x) { return Bf8::widen(x.bits); }

inline void narrow(float x, float& to) { to = x; }
inline void narrow(float x, fp16& to) { to.bits = uint16_t(Fp16::narrow(x)); }
inline void narrow(float x, fp8& to) { to.bits = uint8_t(Fp8::narrow(x)); }
inline void narrow(float x, bf8& to) { to.bits = uint8_t(Bf8::narrow(x)); }
inline void narrow(float x, bf16& to) {
  const uint32_t bits = bits_of(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    to.bits = uint16_t(bits >> 16 | 0x40u);
  else
    to.bits = uint16_t((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

}  // namespace tilekiln::core::inline TILEKILN_TARGET
