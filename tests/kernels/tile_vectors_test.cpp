// SPDX-License-Identifier: MIT
// The vector words beside tiles (AVX-512 with BF16 and VBMI) against plain twins of 16 lanes, bit for bit: products of pairs, roundings,
// numbers in parts, powers and rows of keys.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "check.h"
#include "kernels/backends/cpu/amx/bytes.h"
#include "kernels/backends/cpu/amx/floats.h"
#include "kernels/backends/cpu/amx/halves.h"
#include "kernels/backends/cpu/amx/rows.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

constexpr int kCount = 20000;
std::mt19937 random_words(3);

template <class To, class From> To as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
template <class T> struct Many { alignas(64) T at[64 / sizeof(T)]; };
Many<float> lanes(vf a) { return as<Many<float>>(a); }
Many<uint16_t> halves(vh a) { return as<Many<uint16_t>>(a); }
bool same(float a, float b) { return as<uint32_t>(a) == as<uint32_t>(b) || (std::isnan(a) && std::isnan(b)); }

// Numbers of every size; of few bits, so that some lie between two of bf16.
float drawn(int kind) {
  const uint32_t word = uint32_t(random_words());
  if (kind == 0) return as<float>(word);
  return as<float>((word & 0x80ffffff) | (120 + (word >> 24 & 15)) << 23) * (kind == 1 ? 1 : 0x1p-100f);
}
vf drawn_vector(int kind) {
  Many<float> x;
  for (float& one : x.at) one = drawn(kind);
  return as<vf>(x);
}

// ---- plain twins -----------------------------------------------------------------------------------------------------
float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.f, x) : x; }
uint16_t rounded(float x) {
  const uint32_t bits = as<uint32_t>(flushed(x));
  if (std::isnan(x)) return uint16_t(bits >> 16 | 0x40);
  return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
float wide(uint16_t bits) { return as<float>(uint32_t(bits) << 16); }
// vdpbf16ps: the odd product is added first, each sum is rounded, subnormal numbers are 0.
float plain_dot(float sum, uint32_t a, uint32_t b) {
  const auto of = [](uint32_t word, int i) { return flushed(wide(uint16_t(word >> 16 * i))); };
  sum = flushed(std::fma(of(a, 1), of(b, 1), flushed(sum)));
  return flushed(std::fma(of(a, 0), of(b, 0), sum));
}

void pairs() {
  bool right = true;
  for (int i = 0; i < kCount; ++i) {
    const vf sum = drawn_vector(1), x = drawn_vector(1), y = drawn_vector(1);
    const auto got = lanes(dot_pair(sum, x, y));
    for (int j = 0; j < 16; ++j)
      right &= same(got.at[j], plain_dot(lanes(sum).at[j], as<uint32_t>(lanes(x).at[j]), as<uint32_t>(lanes(y).at[j])));
  }
  CHECK(right);
}

void roundings() {
  bool right = true;
  for (int i = 0; i < kCount; ++i) {
    const vf low = drawn_vector(i % 3), high = drawn_vector(0);
    const auto got = halves(both(low, high));
    for (int j = 0; j < 32; ++j) right &= same(wide(got.at[j]), wide(rounded(lanes(j < 16 ? low : high).at[j % 16])));
  }
  CHECK(right);
}

template <int kParts> void parts_of_floats() {
  bool right = true;
  for (int i = 0; i < kCount; ++i) {
    const vf even = drawn_vector(i % 3), odd = drawn_vector(0);
    const SplitFloats<kParts> split(even, odd);
    bool special = false;
    for (int j = 0; j < 32; ++j) {
      float left = lanes(j % 2 ? odd : even).at[j / 2];
      const bool has = std::fabs(left) < 0x1.ffp127f;
      special |= !has;
      if (!has) left = 0;
      for (int part = 0; part < kParts; ++part) {
        const uint16_t bits = as<Many<uint16_t>>(split.part[part]).at[j];
        right &= bits == rounded(left);
        left -= wide(bits);
      }
    }
    right &= special == split.special;
  }
  CHECK(right);
}

void parts_of_halves() {
  bool right = true;
  for (int first = 0; first < 1 << 16; first += 32) {
    Many<uint16_t> x;
    for (int j = 0; j < 32; ++j) x.at[j] = uint16_t(first + j);
    const SplitHalves split(as<vf>(x));
    const auto high = as<Many<uint16_t>>(split.high), low = as<Many<uint16_t>>(split.low);
    for (int j = 0; j < 32; ++j) {
      const float exact = core::widen(core::fp16{x.at[j]});
      right &= std::isfinite(exact) ? wide(high.at[j]) + wide(low.at[j]) == exact : high.at[j] == 0 && low.at[j] == 0;
    }
    right &= split.special == ((first >> 10 & 31) == 31);
  }
  CHECK(right);
}

void powers() {
  bool right = true;
  const FixedPowers make;
  for (int i = 0; i < kCount; ++i) {
    const vf first = mul(drawn_vector(1), broadcast(.05f)), second = drawn_vector(1);
    const float factor = FixedPowers::factor(.3f), base = FixedPowers::base(float(i % 7));
    vf sum = drawn_vector(1);
    const vf before = sum;
    const auto got = as<Many<uint16_t>>(make(first, second, broadcast(factor), broadcast(base), sum));
    for (int w = 0; w < 32; ++w) {
      const int key = kPowerOrder.key[w];
      const float x = std::nearbyint(std::fma(lanes(key < 16 ? first : second).at[key % 16], factor, base));
      const uint16_t bits = uint16_t(x < 0 ? 0 : x > 65535 ? 65535 : x);
      right &= got.at[w] == uint16_t(bits - kPowerTable.bytes[bits >> 1 & 63]);
      if (w % 2) {
        const uint32_t word = got.at[w - 1] | uint32_t(got.at[w]) << 16;
        right &= same(lanes(sum).at[w / 2], plain_dot(lanes(before).at[w / 2], word, 0x3f803f80));
      }
    }
  }
  for (int w = 0; w < 32; ++w) right &= kPowerOrder.key[w] == power_key(w / 2) + w % 2;
  CHECK(right);
}

void rows_of_keys() {
  bool right = true;
  for (int i = 0; i < 2000; ++i) {
    Many<uint16_t> bits;
    uint16_t most = 0;
    for (uint16_t& one : bits.at) one = uint16_t(random_words());
    const vh x = as<vh>(bits);
    const auto sizes = halves(magnitudes(x)), other = halves(negated(x, 0x8000)),
               order = halves(in_power_order(bits.at));
    const uint32_t there = uint32_t(random_words());
    vf first, second;
    widen_there((const bf16*)bits.at, there, first, second);
    for (int j = 0; j < 32; ++j) {
      most = std::max(most, sizes.at[j]);
      right &= sizes.at[j] == (bits.at[j] & 0x7fff) && other.at[j] == (bits.at[j] ^ 0x8000);
      right &= order.at[j] == bits.at[kPowerOrder.key[j]];
      right &= same(lanes(j < 16 ? first : second).at[j % 16], there >> j & 1 ? wide(bits.at[j]) : 0);
    }
    right &= largest(magnitudes(x)) == most;
    unsigned below = 0;
    for (int j = 0; j < 16; ++j) below |= unsigned(!(lanes(first).at[j] < 1 && lanes(second).at[j] < 1)) << j;
    right &= not_below(first, second, 1) == below;
    const auto less = as<Many<uint8_t>>(less_bytes(as<vf>(bits), 128)), bytes = as<Many<uint8_t>>(bits);
    for (int j = 0; j < 64; ++j) right &= less.at[j] == uint8_t(bytes.at[j] - 128);
  }
  CHECK(right);
}

}  // namespace

int test_vectors() {
  pairs();
  roundings();
  parts_of_floats<2>(), parts_of_floats<3>();
  parts_of_halves();
  powers();
  rows_of_keys();
  return check_result();
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

int main() { return tilekiln::cpu::test_vectors(); }
