// SPDX-License-Identifier: MIT
// Scalar conversions, bit for bit, and Philox against known words.
#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "check.h"
#include "kernels/backends/numbers.h"
#include "kernels/backends/philox.h"

namespace {

using namespace tilekiln::core;

// The value of a pattern by the definition of the format, not by its bits in an fp32.
double value(int bits, int exponent_bits, int mantissa_bits, bool ieee) {
  const int magnitude = bits & ((1 << (exponent_bits + mantissa_bits)) - 1), exponent = magnitude >> mantissa_bits;
  const int mantissa = magnitude & ((1 << mantissa_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = bits >> (exponent_bits + mantissa_bits) ? -1 : 1;
  if (ieee && exponent == (1 << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
  if (!ieee && magnitude == (1 << (exponent_bits + mantissa_bits)) - 1) return NAN;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

template <class T> int narrowed(float x) {
  T y;
  narrow(x, y);
  return y.bits;
}

// Every pattern widens to its value and narrows back; half-way cases go to the even neighbour, what is beyond them does not.
template <class T> void check_format(int exponent_bits, int mantissa_bits, bool ieee) {
  const int sign = 1 << (exponent_bits + mantissa_bits);
  bool widens = true, returns = true, ties = true, below = true, above = true;
  for (int bits = 0; bits < 2 * sign; ++bits) {
    const double expected = value(bits, exponent_bits, mantissa_bits, ieee);
    const float got = widen(T{decltype(T::bits)(bits)});
    widens &= std::isnan(expected) ? std::isnan(got) : got == expected && std::signbit(got) == std::signbit(expected);
    if (std::isnan(expected)) {
      returns &= std::isnan(widen(T{decltype(T::bits)(narrowed<T>(got))}));
      continue;
    }
    returns &= narrowed<T>(got) == bits;
    const double next = value(bits + 1, exponent_bits, mantissa_bits, ieee);
    if ((bits & (sign - 1)) == sign - 1 || !std::isfinite(next) || !std::isfinite(expected)) continue;
    const float middle = float((expected + next) / 2);  // exact: one bit more
    if (middle != (expected + next) / 2) continue;      // bf16's middles of subnormals are not fp32 numbers
    ties &= narrowed<T>(middle) == (bits % 2 ? bits + 1 : bits);
    below &= narrowed<T>(std::nextafter(middle, float(expected))) == bits;
    above &= narrowed<T>(std::nextafter(middle, float(next))) == bits + 1;
  }
  CHECK(widens);
  CHECK(returns);
  CHECK(ties);
  CHECK(below);
  CHECK(above);
}

void numbers() {
  check_format<fp16>(5, 10, true);
  check_format<bf16>(8, 7, true);
  check_format<fp8>(4, 3, false);
  check_format<bf8>(5, 2, true);
  // Overflow: the last finite value, half a step beyond it (a tie, which rounds up), and far beyond.
  CHECK(narrowed<fp16>(65504.f) == 0x7bff);
  CHECK(narrowed<fp16>(65519.996f) == 0x7bff);
  CHECK(narrowed<fp16>(65520.f) == 0x7c00);
  CHECK(narrowed<fp16>(-INFINITY) == 0xfc00);
  CHECK(narrowed<fp16>(1e-30f) == 0);
  CHECK(narrowed<bf16>(3.4e38f) == 0x7f80);
  CHECK(narrowed<fp8>(448.f) == 0x7e);
  CHECK(narrowed<fp8>(463.9f) == 0x7e);
  CHECK(narrowed<fp8>(480.f) == 0x7f);
  CHECK(narrowed<fp8>(INFINITY) == 0x7f);
  CHECK(narrowed<bf8>(57344.f) == 0x7b);
  CHECK(narrowed<bf8>(61440.f) == 0x7c);
}

void philox_words() {
  const struct {
    uint64_t seed, offset, subsequence;
    uint32_t word[4];
  } known[] = {
      {1, 0, 0, {0xf422b57b, 0x780e92b0, 0x574dd0f2, 0x5e9558ea}},
      {1, 0, 1, {0x7b95d061, 0x973a01c3, 0x34a7320a, 0xb948ba2b}},
      {123456789, 1234, 12884901890, {0x2b986a53, 0xeab18f00, 0x5a556bc8, 0x71884bd8}},
      {1099511627783, 383, 30064771081, {0x43c49f9e, 0x458a911c, 0x3f89194d, 0xa8e54c34}},
  };
  for (const auto& k : known) {
    const Philox got = philox(k.seed, k.offset, uint32_t(k.subsequence), uint32_t(k.subsequence >> 32));
    for (int i = 0; i < 4; ++i) CHECK(got.word[i] == k.word[i]);
  }
}

void dropout_bytes() {
  const struct {
    int batch, head, row;
    int byte[16];
  } known[] = {
      {0, 0, 0, {123, 195, 157, 43, 46, 139, 11, 226, 60, 242, 136, 9, 166, 66, 5, 32}},
      {0, 0, 8, {26, 90, 124, 152, 191, 196, 127, 119, 111, 133, 93, 197, 56, 103, 109, 210}},
      {0, 1, 17, {121, 171, 160, 193, 72, 78, 172, 76, 10, 147, 208, 176, 96, 89, 0, 72}},
      {1, 3, 40, {221, 5, 153, 140, 10, 90, 4, 158, 128, 123, 128, 168, 96, 247, 98, 94}},
  };
  constexpr int kHeads = 8;
  for (const auto& k : known) {
    const uint64_t offset = uint64_t(k.batch * kHeads + k.head) * 64;
    for (int key = 0; key < 16; ++key) CHECK(dropout_byte(1, offset, k.row, key) == k.byte[key]);
  }
  int kept = 0;
  for (int row = 0; row < 64; ++row) {
    for (int key = 0; key < 64; ++key) kept += dropout_byte(1, 0, row, key) <= dropout_threshold(0.2f);
  }
  CHECK(kept == 3265);  // 0.797119140625 of 4096
  CHECK(dropout_threshold(0.f) == 255);
  CHECK(dropout_threshold(0.2f) == 204);  // in double it would be 203
  CHECK(dropout_threshold(0.5f) == 127);
  CHECK(dropout_threshold(0.999f) == 0);
}

}  // namespace

int main() {
  numbers();
  philox_words();
  dropout_bytes();
  return check_result();
}
