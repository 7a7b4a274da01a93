// SPDX-License-Identifier: MIT
#include "formats.h"

namespace executor {

namespace {

struct Shape {
  int mantissa, exponent, bias;
  bool fnuz, wide;  // wide: e5m2
};

Shape shape(Fp8 format) {
  const bool wide = format == Fp8::e5m2_ocp || format == Fp8::e5m2_fnuz;
  const bool fnuz = format == Fp8::e4m3_fnuz || format == Fp8::e5m2_fnuz;
  const int mantissa = wide ? 2 : 3, exponent = 7 - mantissa;
  return {mantissa, exponent, (1 << (exponent - 1)) - 1 + fnuz, fnuz, wide};
}

}  // namespace

float from_fp8(u8 bits, Fp8 format) {
  const Shape s = shape(format);
  const int exponent = (bits & 0x7f) >> s.mantissa, mantissa = bits & ((1 << s.mantissa) - 1);
  const bool negative = bits >> 7;
  if (s.fnuz) {
    if (bits == 0x80) return NAN;
  } else if (!s.wide) {
    if ((bits & 0x7f) == 0x7f) return NAN;
  } else if (exponent == 31) {
    if (mantissa) return NAN;
    return negative ? -INFINITY : INFINITY;
  }
  const float value = exponent ? std::ldexp(float(mantissa | (1 << s.mantissa)), exponent - s.bias - s.mantissa)
                               : std::ldexp(float(mantissa), 1 - s.bias - s.mantissa);
  return negative ? -value : value;
}

u8 to_fp8(float value, Fp8 format) {
  const Shape s = shape(format);
  const u8 sign = std::signbit(value) ? 0x80 : 0;
  const u8 nan = s.fnuz ? 0x80 : sign | 0x7f;
  const float size = std::fabs(value);
  if (value != value) return nan;
  if (size == 0) return s.fnuz ? 0 : sign;
  int exponent;
  std::frexp(size, &exponent);
  exponent -= 1;
  if (exponent < 1 - s.bias) exponent = 1 - s.bias;
  float rounded = std::nearbyint(std::ldexp(size, s.mantissa - exponent));
  if (rounded >= float(2 << s.mantissa)) {
    rounded /= 2;
    exponent++;
  }
  const u32 mantissa = u32(rounded);
  const u32 biased = mantissa >= (1u << s.mantissa) ? u32(exponent + s.bias) : 0;
  const u32 encoded = biased ? (biased << s.mantissa) | (mantissa & ((1u << s.mantissa) - 1)) : mantissa;
  const u32 most = s.fnuz ? 0x7f : s.wide ? 0x7b : 0x7e;
  if (std::isinf(size) || encoded > most) return s.wide && !s.fnuz ? sign | 0x7c : nan;
  if (s.fnuz && encoded == 0) return 0;
  return u8(sign | encoded);
}

float exp2_of(float x) {
  if (x != x) return x;
  if (x >= 128.f) return INFINITY;
  if (x < -150.f) return 0.f;
  const float whole = std::nearbyint(x), f = x - whole;  // |f| <= 1/2; within 2^-23 of 2^f
  float p = 1.5370705e-4f;
  p = p * f + 1.3399848e-3f;
  p = p * f + 9.6183733e-3f;
  p = p * f + 5.5503290e-2f;
  p = p * f + 2.4022648e-1f;
  p = p * f + 6.9314721e-1f;
  p = p * f + 1.f;
  const int exponent = int(whole);
  if (exponent >= -126 && exponent <= 127) return p * as_float(u32(exponent + 127) << 23);
  return std::ldexp(p, exponent);
}

float max_number(float a, float b) {
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

float min_number(float a, float b) {
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}

}  // namespace executor
