// SPDX-License-Identifier: MIT
// Quantised panels of b as words of tiles: bf16, or signed bytes. Codes of 4 bits are small integers, exact in both.
#pragma once

#include "kernels/backends/cpu/amx/bytes.h"
#include "kernels/gemm/cpu/amx_pack.h"
#include "kernels/gemm/cpu/unpack.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Small integers, which bf16 has exactly.
template <class Code> void unpack_codes_bf16(float* to, const uint8_t* from, i64 elements, const uint8_t* zeros) {
  alignas(64) int zero[kPanel];
  spread_zeros(zero, zeros);
  const auto bits = [](int x) __attribute__((always_inline)) { return __builtin_bit_cast(uint32_t, float(x)); };
  for (i64 k = 0; k < elements; k += 8, from += kLaneBytes) {
    TILEKILN_UNROLL(4) for (int i = 0; i < 8; i += 2, to += kPanel) {
      const int shift = 8 * (i % 4) + 4 * (i / 4);
      for (int j = 0; j < kPanel; ++j) {
        const uint32_t word = word_of_codes(from, j) >> shift;
        const uint32_t even = bits(Code::at(int(word & 15), zero[j])),
                       odd = bits(Code::at(int(word >> 8 & 15), zero[j]));
        to[j] = __builtin_bit_cast(float, even >> 16 | odd);
      }
    }
  }
}

inline bool factors_are_wide(matrix::Weights weights) { return weights <= matrix::Weights::fp8; }
// Elements along k in a word of 4 bytes of a panel.
inline int elements_of(matrix::Weights weights) {
  return weights == matrix::Weights::fp8 || weights == matrix::Weights::mxfp8 || weights == matrix::Weights::int8 ? 4
                                                                                                                  : 8;
}

// Words of b, that b holds as Weights, of k0 to k1. `from`: the panel's first; zeros: of the group's lanes, or null.
template <class Dot> struct GroupWords;
template <> struct GroupWords<Bf16Tiles> {
  static void unpack(float* to, const matrix::Grouped& g, const uint8_t* from, i64 k0, i64 k1, const uint8_t* zeros) {
    from += k0 / elements_of(g.weights) * kLaneBytes;
    switch (g.weights) {
      case matrix::Weights::int4: return unpack_int4_bf16(to, from, k1 - k0);
      case matrix::Weights::uint4: return unpack_codes_bf16<Uint4Code>(to, from, k1 - k0, zeros);
      case matrix::Weights::mxfp4:
      case matrix::Weights::nvfp4: return unpack_codes_bf16<Mxfp4Code>(to, from, k1 - k0, nullptr);
      default: return unpack_fp8_bf16(to, from, k1 - k0);
    }
  }
};
template <> struct GroupWords<Int8Tiles> {
  static void unpack(float* to, const matrix::Grouped& g, const uint8_t* from, i64 k0, i64 k1, const uint8_t* zeros) {
    const i64 words = (k1 - k0) / 4 * kPanel;
    from += k0 / elements_of(g.weights) * kLaneBytes;
    const float* bytes = to;
    int excess = 128;
    if (g.weights == matrix::Weights::int4)
      unpack_int4_int8(to, from, k1 - k0), excess = 8 - kQuadZero;
    else if (g.weights == matrix::Weights::uint4)
      unpack_codes_int8<Uint4Code>(to, from, k1 - k0, zeros), excess = Uint4Code::kExcess + kQuadZero;
    else if (g.weights == matrix::Weights::int8)
      bytes = (const float*)from;
    else
      unpack_codes_int8<Mxfp4Code>(to, from, k1 - k0, nullptr), excess = Mxfp4Code::kExcess + kQuadZero;
    for (i64 i = 0; i < words; i += kLanes) store(to + i, less_bytes(load_unaligned(bytes + i), excess));
  }
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
