// SPDX-License-Identifier: MIT
// Panels of a quantised b as words of what multiplies them: int4 as (panels, k / 8, 64, 4) bytes, int8 (panels, k / 4, 64, 4), fp8
// (panels, k / 2, 64, 2). 128 is added to each int8. `from` is where a panel's first lane lies; `elements` along k, a multiple of 8.
#pragma once

#include "kernels/gemm/cpu/pack.h"
#include "kernels/gemm/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using Unpack = void (*)(float* to, const uint8_t* from, i64 elements);
constexpr int kLaneBytes = 4 * matrix::kPanelLanes;  // of int4 and int8 from one word to the next
constexpr i64 kAheadBytes = 4096;                    // what is wanted soon

// ---- fp32 words ------------------------------------------------------------------------------------------------------

inline void unpack_fp8_fp32(float* to, const uint8_t* from, i64 elements) {
  for (i64 k = 0; k < elements; k += 2, from += 2 * matrix::kPanelLanes) {
    for (int i = 0; i < 2; ++i, to += kPanel) {
      for (int j = 0; j < kPanel; ++j) to[j] = core::widen(fp8{from[2 * j + i]});
    }
  }
}

// ---- numbers of 4 bits: codes of a half of each byte, and the zero point of its lane -------------------------------------

// -8 to 7.
struct Int4Code {
  static TILEKILN_INLINE int at(int code, int) { return code - 8; }
};
// Twice an e2m1: 0, 1, 2, 3, 4, 6, 8, 12 by the lower three bits, less than 0 by the fourth.
struct Mxfp4Code {
  static constexpr int kExcess = 12;  // where numbers are to be unsigned
  static TILEKILN_INLINE int at(int code, int) {
    const int size = code & 7, more = size > 4 ? size - 4 : 0, twice = size + more + (size == 7 ? 2 : 0);
    return code & 8 ? -twice : twice;
  }
};
// 0 to 15 less a zero point of 0 to 16.
struct Uint4Code {
  static constexpr int kExcess = 16;
  static TILEKILN_INLINE int at(int code, int zero) { return code - zero; }
};
using UnpackCodes = void (*)(float* to, const uint8_t* from, i64 elements, const uint8_t* zeros);

TILEKILN_INLINE uint32_t word_of_codes(const uint8_t* from, int lane) {
  uint32_t word;
  __builtin_memcpy(&word, from + 4 * lane, sizeof word);
  return word;
}
// The zero points of a panel's lanes; without any they are 0.
TILEKILN_INLINE void spread_zeros(int* to, const uint8_t* zeros) {
  for (int j = 0; j < kPanel; ++j) to[j] = zeros ? zeros[j] : 0;
}

template <class Code> void unpack_codes_fp32(float* to, const uint8_t* from, i64 elements, const uint8_t* zeros) {
  alignas(64) int zero[kPanel];
  spread_zeros(zero, zeros);
  for (i64 k = 0; k < elements; k += 8, from += kLaneBytes) {
    TILEKILN_UNROLL(8) for (int i = 0; i < 8; ++i, to += kPanel) {
      const int shift = 8 * (i % 4) + 4 * (i / 4);
      for (int j = 0; j < kPanel; ++j) to[j] = float(Code::at(int(word_of_codes(from, j) >> shift & 15), zero[j]));
    }
  }
}

inline void unpack_int4_fp32(float* to, const uint8_t* from, i64 elements) {
  unpack_codes_fp32<Int4Code>(to, from, elements, nullptr);
}
inline void unpack_mxfp8_fp32(float* to, const uint8_t* from, i64 elements, const uint8_t*) {
  unpack_fp8_fp32(to, from, elements);
}

#if TILEKILN_QUADS
// Quads of unsigned bytes, kExcess and what products take off added to each.
template <class Code> void unpack_codes_int8(float* to, const uint8_t* from, i64 elements, const uint8_t* zeros) {
  uint8_t* bytes = (uint8_t*)to;
  alignas(64) uint8_t zero[4 * kPanel];
  for (int j = 0; j < 4 * kPanel; ++j) zero[j] = zeros ? zeros[j / 4] : 0;
  for (i64 k = 0; k < elements; k += 8, from += kLaneBytes, bytes += 8 * kPanel) {
    for (int j = 0; j < 4 * kPanel; ++j) {
      bytes[j] = uint8_t(Code::at(from[j] & 15, zero[j]) + Code::kExcess + kQuadZero);
      bytes[4 * kPanel + j] = uint8_t(Code::at(from[j] >> 4, zero[j]) + Code::kExcess + kQuadZero);
    }
  }
}
#endif

#if !TILEKILN_QUADS
// ---- int16 pairs -----------------------------------------------------------------------------------------------------

TILEKILN_INLINE void put_pair(float* to, int even, int odd) {
  const uint32_t word = uint16_t(even) | uint32_t(uint16_t(odd)) << 16;
  __builtin_memcpy(to, &word, sizeof word);
}
template <class Code> void unpack_codes_int16(float* to, const uint8_t* from, i64 elements, const uint8_t* zeros) {
  alignas(64) int zero[kPanel];
  spread_zeros(zero, zeros);
  for (i64 k = 0; k < elements; k += 8, from += kLaneBytes) {
    TILEKILN_UNROLL(4) for (int i = 0; i < 8; i += 2, to += kPanel) {
      const int shift = 8 * (i % 4) + 4 * (i / 4);
      for (int j = 0; j < kPanel; ++j) {
        const uint32_t word = word_of_codes(from, j) >> shift;
        put_pair(to + j, Code::at(int(word & 15), zero[j]), Code::at(int(word >> 8 & 15), zero[j]));
      }
    }
  }
}
inline void unpack_int4_int16(float* to, const uint8_t* from, i64 elements) {
  unpack_codes_int16<Int4Code>(to, from, elements, nullptr);
}
inline void unpack_int8_int16(float* to, const uint8_t* from, i64 elements) {
  for (i64 k = 0; k < elements; k += 4, from += kLaneBytes) {
    TILEKILN_UNROLL(2) for (int i = 0; i < 4; i += 2, to += kPanel) {
      for (int j = 0; j < kPanel; ++j) {
        const uint32_t word = word_of_codes(from, j) ^ 0x80808080u;  // two signed bytes of it, by shifts of whole words
        const uint32_t even = uint32_t(int32_t(word << (24 - 8 * i)) >> 24) & 0xffff;
        const uint32_t odd = uint32_t(int32_t(word << (16 - 8 * i)) >> 8) & 0xffff0000;
        const uint32_t pair = even | odd;
        __builtin_memcpy(to + j, &pair, sizeof pair);
      }
    }
  }
}
#endif

#if TILEKILN_QUADS
// ---- quads of int8, 8 added to each ------------------------------------------------------------------------------------

inline void unpack_int4_int8(float* to, const uint8_t* from, i64 elements) {
  for (i64 k = 0; k < elements; k += 8, from += kLaneBytes, to += 2 * kPanel) {
    TILEKILN_UNROLL(4) for (int j = 0; j < kPanel; j += kLanes) {
      const vf x = load_unaligned((const float*)from + j);
      __builtin_prefetch(from + 4 * j + kAheadBytes, 0, 2);
      store(to + j, low_nibbles(x)), store(to + kPanel + j, high_nibbles(x));
    }
  }
}
#endif

#if TILEKILN_PAIRS
// ---- pairs of bf16 ---------------------------------------------------------------------------------------------------

inline void unpack_int4_bf16(float* to, const uint8_t* from, i64 elements) {
  for (i64 k = 0; k < elements; k += 8, from += kLaneBytes, to += 4 * kPanel) {
    TILEKILN_UNROLL(4) for (int j = 0; j < kPanel; j += kLanes) {
      const vf x = load_unaligned((const float*)from + j);
      __builtin_prefetch(from + 4 * j + kAheadBytes, 0, 2);
      store(to + j, nibble_pairs<0, false>(x)), store(to + kPanel + j, nibble_pairs<2, false>(x));
      store(to + 2 * kPanel + j, nibble_pairs<0, true>(x)), store(to + 3 * kPanel + j, nibble_pairs<2, true>(x));
    }
  }
}
inline void unpack_fp8_bf16(float* to, const uint8_t* from, i64 elements) {
  for (i64 k = 0; k < elements; k += 2, from += 2 * matrix::kPanelLanes, to += kPanel) {
    TILEKILN_UNROLL(4) for (int j = 0; j < kPanel; j += kLanes) {
      __builtin_prefetch(from + 2 * j + kAheadBytes, 0, 2);
      store(to + j, words(load_halves((const fp8*)from + 2 * j)));
    }
  }
}
#endif

// ---- factors -----------------------------------------------------------------------------------------------------------

// The fp32 factors of stretches of a panel, kPanelLanes a stretch; half of those of e2m1, whose numbers are doubled.
inline void widen_factors(float* to, const matrix::Grouped& g, i64 panel, i64 groups, i64 first, int count) {
  const i64 at = (panel * groups + first) * matrix::kPanelLanes, n = i64(count) * matrix::kPanelLanes;
  if (g.weights == matrix::Weights::uint4) {
    const fp16* const from = (const fp16*)g.b_scale + at;
    for (i64 j = 0; j < n; j += kLanes) store(to + j, widen(from + j));
    return;
  }
  const uint8_t* const from = (const uint8_t*)g.b_scale + at;
  if (g.weights == matrix::Weights::nvfp4) {
    for (i64 j = 0; j < n; ++j) to[j] = 0.5f * core::widen(fp8{from[j]});
    return;
  }
  const uint32_t more = g.weights == matrix::Weights::mxfp8;
  for (i64 j = 0; j < n; ++j) {  // 2^(e - 128 + more): below 2^-126 a subnormal number; 255 is NaN
    const uint32_t e = from[j] + more, bits = from[j] == 255 ? 0x7fc00000u : e > 1 ? (e - 1) << 23 : 0x200000u << e;
    __builtin_memcpy(to + j, &bits, sizeof bits);
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
