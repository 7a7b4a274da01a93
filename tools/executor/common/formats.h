// SPDX-License-Identifier: MIT
// Number formats as bits: fp16, bf16 and the four fp8 ones, to and from float32. Rounding is to nearest even.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

namespace executor {

using i8 = int8_t;
using i16 = int16_t;
using i32 = int32_t;
using i64 = int64_t;
using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;

template <class To, class From> inline To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From), "both sides have one size");
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline float as_float(u32 bits) { return bit_cast<float>(bits); }
inline u32 bits_of(float value) { return bit_cast<u32>(value); }

inline float from_half(u32 half) {
  half &= 0xffff;
  const u32 sign = (half & 0x8000) << 16, magnitude = half & 0x7fff;
  float value = as_float(magnitude << 13) * as_float(0x77800000);  // 2^112: exact, subnormals included
  if (magnitude >= 0x7c00) value = as_float(0x7f800000 | ((magnitude & 0x3ff) << 13));
  return as_float(bits_of(value) | sign);
}

inline u32 to_half(float value) {
  u32 bits = bits_of(value);
  const u32 sign = (bits >> 16) & 0x8000;
  bits &= 0x7fffffff;
  if (bits > 0x7f800000) return sign | 0x7e00;
  if (bits >= 0x477ff000) return sign | 0x7c00;
  if (bits < 0x38800000) return sign | (bits_of(as_float(bits) + 0.5f) - 0x3f000000);  // subnormal: the FPU rounds
  const u32 rounded = bits + 0xfff + ((bits >> 13) & 1);
  return sign | ((rounded - 0x38000000) >> 13);
}

inline u32 to_half_toward_zero(float value) {
  const u32 half = to_half(value);
  return std::fabs(from_half(half)) > std::fabs(value) ? half - 1 : half;
}

inline float from_bfloat(u32 bits) { return as_float(bits << 16); }

inline u32 to_bfloat(float value) {
  const u32 bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return (bits >> 16) | 0x40;
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

/// The fp8 formats. OCP is what gfx950 and gfx1201 have; FNUZ (no infinity, one zero, NaN is 0x80) is gfx942's.
enum class Fp8 { e4m3_ocp, e5m2_ocp, e4m3_fnuz, e5m2_fnuz };

float from_fp8(u8 bits, Fp8 format);
/// Overflow gives NaN, or infinity for e5m2_ocp, as the conversions do with clamp off.
u8 to_fp8(float value, Fp8 format);

/// v_exp_f32: 2^x to about a unit in the last place.
float exp2_of(float x);
/// IEEE maximumNumber and minimumNumber: NaN loses, +0 is above -0.
float max_number(float a, float b);
float min_number(float a, float b);

/// Toward zero; what does not fit becomes the nearest that does, NaN becomes 0.
inline u32 to_i32(float x) {
  return x != x ? 0 : x >= 2147483648.f ? 0x7fffffff : x <= -2147483648.f ? 0x80000000 : u32(i32(x));
}
inline u32 to_u32(float x) { return !(x > 0) ? 0 : x >= 4294967296.f ? ~0u : u32(x); }

}  // namespace executor
