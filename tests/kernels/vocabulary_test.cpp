// SPDX-License-Identifier: MIT
// One target's SIMD vocabulary against scalar code: conversions bit for bit, 2^x, soft caps, selection, transposes, Philox.
#include "kernels/backends/cpu/vocabulary.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "check.h"
#include "guarded.h"
#include "kernels/attention/cpu/dropout.h"
#include "kernels/attention/cpu/score.h"
#include "kernels/backends/cpu/aarch64.h"
#include "kernels/backends/cpu/exp2.h"
#include "kernels/backends/cpu/load.h"
#include "kernels/backends/cpu/x86_64.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

float lane(vf a, int i) {
  float x[kLanes];
  store_unaligned(x, a);
  return x[i];
}

bool same(float a, float b) { return core::bits_of(a) == core::bits_of(b) || (std::isnan(a) && std::isnan(b)); }

template <class T> void widening() {
  bool right = true;
  const int patterns = 1 << 8 * sizeof(T);
  for (int first = 0; first < patterns; first += kLanes) {
    T x[kLanes];
    for (int i = 0; i < kLanes; ++i) x[i].bits = decltype(T::bits)(first + i);
    const vf got = widen(x);
    for (int i = 0; i < kLanes; ++i) right &= same(lane(got, i), core::widen(x[i]));
  }
  CHECK(right);
}

// Every value of T, the middle to the next one, and the fp32 numbers on either side of it.
template <class T> void narrowing() {
  bool right = true;
  for (int bits = 0; bits < 65536; ++bits) {
    const float x = core::widen(T{uint16_t(bits)}), next = core::widen(T{uint16_t(bits + 1)});
    const float middle = x + (next - x) / 2;
    const float tries[] = {x, middle, std::nextafter(middle, x), std::nextafter(middle, next)};
    for (const float y : tries) {
      if (std::abs(y) < std::numeric_limits<float>::min()) continue;  // the bf16 instructions take fp32 subnormals as 0
      T got[kLanes], expected;
      narrow(got, broadcast(y));
      core::narrow(y, expected);
      right &= got[0].bits == expected.bits || (std::isnan(core::widen(got[0])) && std::isnan(core::widen(expected)));
      right &= got[kLanes - 1].bits == got[0].bits;
    }
  }
  CHECK(right);
}

// Numbers become the nearest bytes, even ones of two, at the ends the last one; NaN of either sign is -128.
void bytes() {
  const float given[] = {0.f, 0.5f, 1.5f, -2.5f, 126.6f, 127.5f, 3000.f, -127.6f, -128.5f, -7e8f, NAN, -NAN};
  const int right[] = {0, 0, 2, -2, 127, 127, 127, -128, -128, -128, -128, -128};
  for (size_t i = 0; i < std::size(given); ++i) {
    signed char got[kLanes];
    narrow(got, broadcast(given[i]));
    CHECK(got[0] == right[i] && got[kLanes - 1] == right[i]);
  }
}

// Rows that end at an inaccessible page are read and written exactly as far as they go.
template <class T> void partial_rows(test::Kind kind) {
  for (int n = 1; n <= kLanes; ++n) {
    test::Guarded row(kind, size_t(n));
    for (int i = 0; i < n; ++i) row.set(size_t(i), float(i + 1));
    const vf got = widen_some(static_cast<const T*>(row.data()), n);
    bool right = true;
    for (int i = 0; i < kLanes; ++i) right &= lane(got, i) == (i < n ? float(i + 1) : 0.f);
    row.poison();
    narrow_some(static_cast<T*>(row.data()), got, n);
    for (int i = 0; i < n; ++i) right &= row.get(size_t(i)) == i + 1;
    CHECK(right);
  }
}

template <int Degree> double worst_exp2() {
  double worst = 0;
  for (double x = -125.9; x < 60; x += 0.00137) {
    const double got = lane(exp2<Degree>(broadcast(float(x))), 0), expected = std::exp2(double(float(x)));
    worst = std::max(worst, std::abs(got / expected - 1));
  }
  return worst;
}

void exponentials() {
  CHECK(worst_exp2<3>() < 1.04e-4);
  CHECK(worst_exp2<5>() <
        3e-7);  // 8.3e-8 of the polynomial; the rest is rounding, more of it without a fused multiply-add
  for (const float x : {-INFINITY, -std::numeric_limits<float>::max(), -1e30f, -1000.f}) {
    CHECK(lane(exp2<3>(broadcast(x)), 0) == 0);
    CHECK(lane(exp2<5>(broadcast(x)), 0) == 0);
  }
  for (const float zero : {0.f, -0.f}) {
    CHECK(lane(exp2<3>(broadcast(zero)), 0) == 1 && lane(exp2<5>(broadcast(zero)), 0) == 1);
  }
  // Near 0 the error is that of rounding, and of degree 3 a share of x, on both sides.
  for (const float x : {-1e-3f, -1e-5f, -1e-7f, 1e-7f, 1e-5f, 1e-3f}) {
    const double exact = std::exp2(double(x));
    CHECK(std::abs(lane(exp2<3>(broadcast(x)), 0) / exact - 1) <= 0x1p-23 + 3e-3 * std::abs(x));
    CHECK(std::abs(lane(exp2<5>(broadcast(x)), 0) / exact - 1) <= 0x1p-23);
  }
}

// Every NaN stays one, whatever its payload says: quiet and signalling, of either sign, all bits set or the lowest one alone.
const uint32_t kNans[] = {0x7fc00000, 0x7fffffff, 0xffffffff, 0xffc00000,
                          0x7f800001, 0xff800001, 0x7fc00081, 0x7fc000ff};

void nans() {
  for (const uint32_t bits : kNans) {
    const vf x = broadcast_word(&bits);
    CHECK(std::isnan(lane(exp2<3>(x), 0)));
    CHECK(std::isnan(lane(exp2<5>(x), kLanes - 1)));
    CHECK(std::isnan(lane(SoftCapped({1.f, 1.f, 50.f, 0.f, nullptr, 0, 0, 0, 0})(x), 0)));
  }
}

// The error follows the score whatever the cap is, and what it is of the cap where the score is beyond it.
void soft_caps() {
  for (const float cap : {1e-3f, 1.f, 50.f, 1e8f, 1e20f}) {
    const SoftCapped capped({1.f, 1.f, cap, 0.f, nullptr, 0, 0, 0, 0});
    double of_score = 0, of_result = 0;
    for (double x = 1e-9; x < 1e3; x *= 1.003) {
      for (const float s : {float(x * cap), float(-x * cap)}) {
        const double expected = cap * std::tanh(double(s) / cap),
                     error = std::abs(lane(capped(broadcast(s)), 0) - expected);
        of_score = std::max(of_score, error / std::abs(s));
        of_result = std::max(of_result, error / std::abs(expected));
      }
    }
    CHECK(of_score < 6 * 0x1p-24);
    CHECK(of_result < 10 * 0x1p-24);
    CHECK(lane(capped(zero()), 0) == 0);
    CHECK(std::abs(lane(capped(broadcast(INFINITY)), 0) / cap - 1) < 5e-7);
    CHECK(std::abs(lane(capped(broadcast(-INFINITY)), 0) / cap + 1) < 5e-7);
  }
}

void selection() {
  const vf a = iota(), b = broadcast(-7.f);
  bool selects = true, keeps = true;
  for (unsigned bits = 0; bits < 1u << kLanes; bits += kLanes == 16 ? 7 : 1) {
    const vf s = select(lane_bits(bits), a, b), k = keep_if(lane_bits(bits), b);
    for (int i = 0; i < kLanes; ++i) {
      selects &= lane(s, i) == (bits >> i & 1 ? float(i) : -7.f);
      keeps &= lane(k, i) == (bits >> i & 1 ? -7.f : 0.f);
    }
  }
  CHECK(selects);
  CHECK(keeps);
  CHECK(std::isnan(lane(max(broadcast(1.f), broadcast(NAN)), 0)));
  CHECK(std::isnan(lane(min(broadcast(1.f), broadcast(NAN)), 0)));
  CHECK(lane(max(a, broadcast(2.f)), 1) == 2 && lane(max(a, broadcast(2.f)), 3) == 3);
  CHECK(lane(abs(b), 0) == 7 && lane(abs(broadcast(-INFINITY)), 0) == INFINITY);
  CHECK(lane(fma(a, b, broadcast(1.f)), 2) == -13 && lane(fms(a, b, broadcast(1.f)), 2) == -15);
  for (float x = 1e-3f; x < 1e6f; x *= 1.37f)
    CHECK(std::abs(double(lane(reciprocal(broadcast(x)), 0)) * double(x) - 1) < 2e-7);
}

void transposes() {
  vf r[kLanes];
  for (int i = 0; i < kLanes; ++i) r[i] = add(iota(), broadcast(float(100 * i)));
  transpose(r);
  bool right = true;
  for (int i = 0; i < kLanes; ++i) {
    for (int j = 0; j < kLanes; ++j) right &= lane(r[i], j) == float(100 * j + i);
  }
  CHECK(right);
}

// Keep bits and stored bytes of blocks that start anywhere, with an offset that carries into its high word.
void random_blocks() {
  for (const int row : {0, 64, 192}) {
    for (const int key : {0, 64, 640}) {
      const u64 seed = 0x123456789abcdefULL, offset = 0xffffffe0ULL;
      const uint8_t threshold = 180;
      lane_bits keep[kVectors * kTileK];
      keep_block(keep, seed, offset, row, key, threshold);
      constexpr int kRows = 61, kKeys = 59, kStride = 70;
      std::vector<unsigned char> bytes(kRows * kStride, 0xaa);
      store_randval(bytes.data(), kStride, seed, offset, row, key, kRows, kKeys);
      bool kept = true, stored = true;
      for (int i = 0; i < kTileQ; ++i) {
        for (int j = 0; j < kTileK; ++j) {
          const uint8_t byte = core::dropout_byte(seed, offset, row + i, key + j);
          kept &= (keep[i / kLanes * kTileK + j] >> i % kLanes & 1) == (byte <= threshold);
          if (i < kRows) stored &= bytes[i * kStride + j] == (j < kKeys ? byte : 0xaa);
        }
      }
      CHECK(kept);
      CHECK(stored);
    }
  }
}

#if TILEKILN_PAIRS
// Every byte as bf16.
template <class T> void halves_of_bytes_are_exact() {
  constexpr int kHalves = 2 * kLanes;  // a register
  bool exact = true;
  for (int first = 0; first < 256; first += kHalves) {
    T x[kHalves];
    alignas(64) bf16 got[kHalves], whole[kHalves];
    for (int i = 0; i < kHalves; ++i) x[i].bits = uint8_t(first + i);
    store_halves(got, load_halves(x, kHalves)), store_halves(whole, load_halves(x));
    for (int i = 0; i < kHalves; ++i)
      exact &= same(core::widen(got[i]), core::widen(x[i])) && got[i].bits == whole[i].bits;
  }
  CHECK(exact);
}

void pairs() {
  constexpr int kHalves = 2 * kLanes;
  bool partial = true;
  halves_of_bytes_are_exact<fp8>();
  halves_of_bytes_are_exact<bf8>();
  for (int n = 1; n <= kHalves; ++n) {
    test::Guarded row(test::Kind::bf16, size_t(n));
    for (int i = 0; i < n; ++i) row.set(size_t(i), float(i + 1));
    alignas(64) bf16 got[kHalves];
    store_halves(got, load_halves(static_cast<const bf16*>(row.data()), n));
    for (int i = 0; i < kHalves; ++i) partial &= core::widen(got[i]) == (i < n ? float(i + 1) : 0.f);
  }
  CHECK(partial);

  alignas(64) bf16 word[2 * kHalves];
  alignas(64) bf16 even[kHalves], odd[kHalves];
  for (int i = 0; i < kHalves; ++i) {
    core::narrow(float(i), even[i]);
    core::narrow(float(100 + i), odd[i]);
  }
  interleave(word, load_halves(even, kHalves), load_halves(odd, kHalves));
  bool interleaved = true;
  for (int i = 0; i < kHalves; ++i)
    interleaved &= word[2 * i].bits == even[i].bits && word[2 * i + 1].bits == odd[i].bits;
  CHECK(interleaved);

  // (i, 2) . (3, 5) + 1
  const vf dot = dot_pair(broadcast(1.f), pair(iota(), broadcast(2.f)), pair(broadcast(3.f), broadcast(5.f)));
  bool dots = true;
  for (int i = 0; i < kLanes; ++i) dots &= lane(dot, i) == float(3 * i + 11);
  CHECK(dots);
  // (i, 2) . (1, 1)
  const vf by_ones = dot_pair(zero(), pair(iota(), broadcast(2.f)), pairs_of_ones());
  bool ones = true;
  for (int i = 0; i < kLanes; ++i) ones &= lane(by_ones, i) == float(i + 2);
  CHECK(ones);
}
#endif

#if TILEKILN_SQUARES
// x, a sum of numbers of like size, as fp32 rounded to odd; subnormal numbers are 0.
float rounded_to_odd(double x) {
  const float nearest = float(x);
  if (double(nearest) == x) return nearest;
  const float down = std::abs(double(nearest)) > std::abs(x) ? std::nextafter(nearest, 0.f) : nearest;
  const float up = std::nextafter(down, std::copysign(INFINITY, down));
  const float odd = core::bits_of(down) & 1 ? down : up;
  return std::abs(odd) < std::numeric_limits<float>::min() ? std::copysign(0.f, odd) : odd;
}

// Sums of squares have the bits of two dot_pairs, which are those of Arm's rule: products of bf16, then their sum, then that and what was
// there, each rounded to odd. Then numbers of all kinds, and bytes.
void squares() {
  unsigned state = 1;
  const auto drawn = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  bool like_pairs = true, by_the_rule = true, integers = true;
  for (int round = 0; round < 4000; ++round) {
    const bool plain = round % 2;
    alignas(16) uint16_t columns[8], rows[8];
    alignas(16) float sums[4], got[4], expected[4];
    for (int i = 0; i < 8; ++i) {
      const auto number = [&] { return uint16_t(plain ? (drawn() & 0x87ff) + 0x3c00 : drawn()); };
      columns[i] = number(), rows[i] = number();
    }
    for (float& one : sums)
      one = plain ? float(int(drawn() & 0xffffff) - 0x800000) / 65536 : core::float_of(drawn() << 8);
    const auto load_all = [](const void* p) { return load_unaligned(static_cast<const float*>(p)); };
    store(got, dot_square_pairs(load(sums), load_all(columns), load_all(rows)));
    for (int column = 0; column < 2; ++column) {
      for (int row = 0; row < 2; ++row) {
        const int at = 2 * column + row;
        const auto pair_of = [&](const uint16_t* from, int i) { return broadcast_word(from + 2 * i); };
        vf sum = broadcast(sums[at]);
        float odd = sums[at];
        for (int i = 0; i < 2; ++i) {
          sum = dot_pair(sum, pair_of(columns, 2 * column + i), pair_of(rows, 2 * row + i));
          const auto product = [&](int k) {
            const auto of = [](uint16_t bits) { return double(core::widen(bf16{bits})); };
            return rounded_to_odd(of(columns[4 * column + k]) * of(rows[4 * row + k]));
          };
          odd =
              rounded_to_odd(double(odd) + double(rounded_to_odd(double(product(2 * i)) + double(product(2 * i + 1)))));
        }
        expected[at] = lane(sum, 0);
        like_pairs &= same(got[at], expected[at]);
        if (plain) by_the_rule &= same(got[at], odd);
      }
    }
    alignas(16) unsigned char of_columns[16];
    alignas(16) signed char of_rows[16];
    alignas(16) int totals[4] = {1, -2, 0x7fffffff, 4}, found[4];
    for (int i = 0; i < 16; ++i) {
      of_columns[i] = static_cast<unsigned char>(drawn());
      of_rows[i] = static_cast<signed char>(drawn());
    }
    store(reinterpret_cast<float*>(found), dot_square_quads(load_all(totals), load_all(of_columns), load_all(of_rows)));
    for (int at = 0; at < 4; ++at) {
      unsigned sum = unsigned(totals[at]);
      for (int i = 0; i < 8; ++i) sum += unsigned(of_columns[8 * (at / 2) + i] * of_rows[8 * (at % 2) + i]);
      integers &= sum == unsigned(found[at]);
    }
  }
  CHECK(like_pairs);
  CHECK(by_the_rule);
  CHECK(integers);
}
#endif

void vocabulary() {
  widening<core::fp16>();
  widening<core::bf16>();
  widening<core::fp8>();
  widening<core::bf8>();
  narrowing<core::fp16>();
  narrowing<core::bf16>();
  bytes();
  partial_rows<float>(test::Kind::fp32);
  partial_rows<core::fp16>(test::Kind::fp16);
  partial_rows<core::bf16>(test::Kind::bf16);
  exponentials();
  nans();
  soft_caps();
  selection();
  transposes();
  random_blocks();
#if TILEKILN_PAIRS
  pairs();
#endif
#if TILEKILN_SQUARES
  squares();
#endif
}

// Exit code 77: this machine cannot run the target.
bool supported() {
#if defined(__AVX512BF16__)
  return x86_64::has_x86_64_v4() && x86_64::has_avx512bf16();
#elif defined(__AVX512F__)
  return x86_64::has_x86_64_v4();
#elif defined(__AVX2__)
  return x86_64::has_x86_64_v3();
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  return aarch64::has_asimddp() && aarch64::has_asimdhp() && aarch64::has_bf16() && aarch64::has_i8mm();
#elif defined(__ARM_FEATURE_DOTPROD)
  return aarch64::has_asimddp() && aarch64::has_asimdhp();
#else
  return true;
#endif
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

int main() {
  if (!tilekiln::cpu::supported()) return 77;
  tilekiln::cpu::vocabulary();
  return check_result();
}
