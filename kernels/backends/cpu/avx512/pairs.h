// SPDX-License-Identifier: MIT
// bf16 pairs: 32 elements a register, and vdpbf16ps where the machine has it.
#pragma once

#include "kernels/backends/cpu/avx512/convert.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

#ifndef __AVX512BF16__

#define TILEKILN_PAIRS 0

#else

#define TILEKILN_PAIRS 1
struct vh { __m512i v; };  // 32 bf16

// acc + even a even b + odd a odd b, per lane
TILEKILN_INLINE vf dot_pair(vf acc, vf a, vf b) {
#if defined(__clang__) && __clang_major__ < 20
  asm("" : "+v"(b.v));  // clang 16's VectorCombine recurses without end on a broadcast that is cast to bf16
#endif
  return {_mm512_dpbf16_ps(acc.v, (__m512bh)a.v, (__m512bh)b.v)};
}

// The 16 lanes of `low`, then those of `high`, each rounded to nearest even.
TILEKILN_INLINE vh both(vf low, vf high) { return {(__m512i)_mm512_cvtne2ps_pbh(high.v, low.v)}; }

// Words (low half[i], high half[i]).
TILEKILN_INLINE vh interleaved(vh a) {
  const __m512i index = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8,  //
                                         23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return {_mm512_permutexvar_epi16(index, a.v)};
}

TILEKILN_INLINE vf words(vh a) { return {_mm512_castsi512_ps(a.v)}; }

TILEKILN_INLINE vf pairs_of_ones() { return words({_mm512_set1_epi16(0x3f80)}); }

// A word per lane: (even, odd), each rounded to nearest even.
TILEKILN_INLINE vf pair(vf even, vf odd) { return words(interleaved(both(even, odd))); }

// Loads at most 32 elements of which n exist; the rest read as 0. Without n: all of them, by a load that needs no mask.
TILEKILN_INLINE vh load_halves(const bf16* p, int n) {
  return {_mm512_maskz_loadu_epi16(n >= 32 ? ~0u : (1u << n) - 1, p)};
}
TILEKILN_INLINE vh load_halves(const bf16* p) { return {_mm512_loadu_si512(p)}; }

// e4m3 and e5m2 -> bf16 are exact. By a table of the 128 magnitudes: 6 operations for 32 elements; by arithmetic on 16-bit lanes, with
// the 8 subnormals and NaN of e4m3 set right afterwards, 11.
struct Fp8Table {
  alignas(64) uint16_t halves[128];
  constexpr Fp8Table() : halves{0, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60} {  // k 2^-9
    for (int i = 8; i < 127; ++i) halves[i] = uint16_t((i << 4) + (120 << 7));
    halves[127] = 0x7fc0;
  }
};
constexpr Fp8Table kFp8Table;
struct Bf8Table {
  alignas(64) uint16_t halves[128];
  constexpr Bf8Table() : halves{0, 0x3780, 0x3800, 0x3840} {  // k 2^-16
    for (int i = 4; i < 124; ++i) halves[i] = uint16_t((i << 5) + (112 << 7));
    halves[124] = 0x7f80;
    for (int i = 125; i < 128; ++i) halves[i] = 0x7fc0;
  }
};
constexpr Bf8Table kBf8Table;

// A table in registers, so that one kernel reads either kind.
class ByteTable {
  __m512i part_[4];

 public:
  explicit TILEKILN_INLINE ByteTable(const uint16_t* halves) {
    TILEKILN_UNROLL(4) for (int i = 0; i < 4; ++i) part_[i] = _mm512_load_si512(halves + 32 * i);
  }
  TILEKILN_INLINE vh halves(__m256i bytes) const {
    const __m512i x = _mm512_cvtepi8_epi16(bytes);
    const __m512i low = _mm512_permutex2var_epi16(part_[0], x, part_[1]);
    const __m512i high = _mm512_permutex2var_epi16(part_[2], x, part_[3]);
    const __m512i r = _mm512_mask_mov_epi16(low, _mm512_test_epi16_mask(x, _mm512_set1_epi16(0x40)), high);
    return {_mm512_ternarylogic_epi32(r, x, _mm512_set1_epi16(short(0x8000)), 0xf8)};  // r | (x & sign)
  }
};
TILEKILN_INLINE vh halves_of_bytes(const uint16_t* table, __m256i bytes) { return ByteTable(table).halves(bytes); }
TILEKILN_INLINE vh load_halves(const fp8* p, int n) {
  return halves_of_bytes(kFp8Table.halves, _mm256_maskz_loadu_epi8(n >= 32 ? ~0u : (1u << n) - 1, p));
}
TILEKILN_INLINE vh load_halves(const fp8* p) {
  return halves_of_bytes(kFp8Table.halves, _mm256_loadu_si256((const __m256i*)p));
}
TILEKILN_INLINE vh load_halves(const bf8* p, int n) {
  return halves_of_bytes(kBf8Table.halves, _mm256_maskz_loadu_epi8(n >= 32 ? ~0u : (1u << n) - 1, p));
}
TILEKILN_INLINE vh load_halves(const bf8* p) {
  return halves_of_bytes(kBf8Table.halves, _mm256_loadu_si256((const __m256i*)p));
}
#define TILEKILN_BYTE_TABLES 1
template <class T> inline constexpr const uint16_t* kByteTable = nullptr;
template <> inline constexpr const uint16_t* kByteTable<fp8> = kFp8Table.halves;
template <> inline constexpr const uint16_t* kByteTable<bf8> = kBf8Table.halves;

// Words of bf16 of the halves of bytes `first` and first + 1 of each word, less 8: the lower ones, or the upper.
struct NibbleTable {
  alignas(64) uint16_t halves[32] = {0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80,
                                     0,      0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
};
constexpr NibbleTable kNibbleTable;
template <int kFirst, bool kUpper> TILEKILN_INLINE vf nibble_pairs(vf a) {
  const __m512i x = _mm512_srli_epi32(_mm512_castps_si512(a.v), 8 * kFirst + 4 * kUpper);
  const __m512i low = _mm512_and_si512(x, _mm512_set1_epi32(15));
  const __m512i both = _mm512_ternarylogic_epi32(low, _mm512_slli_epi32(x, 8), _mm512_set1_epi32(15 << 16), 0xf8);
  return {_mm512_castsi512_ps(_mm512_permutexvar_epi16(both, _mm512_load_si512(kNibbleTable.halves)))};
}

TILEKILN_INLINE vh zero_halves() { return {_mm512_setzero_si512()}; }
TILEKILN_INLINE void store_halves(bf16* p, vh a) { _mm512_store_si512(p, a.v); }

// Words (a, b) of two rows: lane i of low is element 8 (i / 4) + i % 4, of high 4 more.
TILEKILN_INLINE void interleave_lanes(vh a, vh b, vf& low, vf& high) {
  low = words({_mm512_unpacklo_epi16(a.v, b.v)});
  high = words({_mm512_unpackhi_epi16(a.v, b.v)});
}

// The two halves of a register into two rows.
TILEKILN_INLINE void store_two_rows(bf16* p, long long row, vh a) {
  _mm256_store_si256((__m256i*)p, _mm512_castsi512_si256(a.v));
  _mm256_store_si256((__m256i*)(p + row), _mm512_extracti64x4_epi64(a.v, 1));
}

// Two rows of 32 -> 32 words (even[i], odd[i]).
TILEKILN_INLINE void interleave(bf16* p, vh even, vh odd) {
  const __m512i low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,  //
                                       39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  _mm512_store_si512(p, _mm512_permutex2var_epi16(even.v, low, odd.v));
  _mm512_store_si512(p + 32, _mm512_permutex2var_epi16(even.v, high, odd.v));
}

#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
