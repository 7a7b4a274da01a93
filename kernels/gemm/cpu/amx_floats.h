// SPDX-License-Identifier: MIT
// Operands of fp32 in parts of bf16: as amx_pack.h has them, the parts in the order in which amx.h multiplies them.
#pragma once

#include "kernels/backends/cpu/amx/floats.h"
#include "kernels/gemm/cpu/amx_pack.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// fp32 by so many products of its parts: hh, hm, mh, or these and mm, hl, lh.
template <int kProducts> struct ByProducts { float value; };
using By3 = ByProducts<3>;
using By6 = ByProducts<6>;
template <> constexpr int kPartsOf<By3> = 2;
template <> constexpr int kPartsOf<By6> = 3;
template <int kProductsOf> struct FloatTiles : Bf16Tiles {
  static constexpr int kProducts = kProductsOf, kParts = kPartsOf<ByProducts<kProductsOf>>;
};

template <int kProducts> TILEKILN_INLINE float number_of(ByProducts<kProducts> x) { return x.value; }
template <int kProducts> constexpr float kLeastSpecial<ByProducts<kProducts>> = kLeastWithoutParts;

// Places of the parts, largest first: of A small parts are multiplied before large ones, of B the other way round.
template <int kParts> struct FloatOrder;
template <> struct FloatOrder<2> { static constexpr int a[] = {1, 0}, b[] = {0, 1}; };
template <> struct FloatOrder<3> { static constexpr int a[] = {1, 2, 0}, b[] = {0, 2, 1}; };

constexpr int kStepFloats = 2 * kStepWords;  // along K

// 16 words of each of 16 rows, K contiguous, or columns, K `stride` apart: put(part, i, words of row or column i).
template <int kParts, class Put>
TILEKILN_INLINE void split_rows(const float* from, i64 stride, int rows, i64 elements, bool& special, Put&& put) {
  alignas(64) float whole[kStepFloats];
  for (int i = 0; i < kTile; ++i) {
    const float* p = whole;
    if (i < rows && elements >= kStepFloats) {
      p = from + i * stride;
    } else {
      const i64 there = i < rows ? elements : 0;
      for (int j = 0; j < kStepFloats; j += kLanes)
        store(whole + j, j < there ? widen_some(from + i * stride + j, at_most(there - j, kLanes)) : zero());
    }
    vf even, odd;
    even_odd(p, even, odd);
    const SplitFloats<kParts> split(even, odd);
    special |= split.special;
    TILEKILN_UNROLL(3) for (int part = 0; part < kParts; ++part) put(part, i, split.part[part]);
  }
}
// A word of each of 16 columns a time: put(part, w, words of the w-th two along K).
template <int kParts, class Put>
TILEKILN_INLINE void split_columns(const float* from, i64 stride, int columns, i64 elements, bool& special, Put&& put) {
  const auto get = [&](i64 k) __attribute__((always_inline)) {
    return k < elements && columns > 0 ? widen_some(from + k * stride, columns) : zero();
  };
  for (int w = 0; w < kStepWords; ++w) {
    const SplitFloats<kParts> split(get(2 * w), get(2 * w + 1));
    special |= split.special;
    TILEKILN_UNROLL(3) for (int part = 0; part < kParts; ++part) put(part, w, split.part[part]);
  }
}
// A square of words, turned, to rows `row` floats apart.
__attribute__((noinline)) inline void store_turned(float* to, i64 row, const float* square) {
  vf r[kLanes];
  TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) r[i] = load(square + i * kLanes);
  transpose(r);
  TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) store(to + i * row, r[i]);
}

// Rows m0 to m1 of A from k0 to k1.
template <class T>
void pack_a_floats(float* to, const matrix::Problem& p, int m0, int m1, i64 k0, i64 k1, bool& special) {
  constexpr int kParts = kPartsOf<T>, block_rows = 2 * kTile;
  constexpr i64 part_floats = block_rows * kStepWords;
  alignas(64) float squares[kParts][kTileWords];
  const i64 steps = (k1 - k0 + kStepFloats - 1) / kStepFloats;
  const float* const a = (const float*)p.a;
  for (int m = m0; m < m1; m += kTile) {
    const int at = m - m0, rows = least(kTile, m1 - m);
    float* tile = to + at / block_rows * steps * (kParts * part_floats) + at % block_rows * kStepWords;
    for (i64 k = k0; k < k1; k += kStepFloats, tile += kParts * part_floats) {
      const auto place = [&](int part) { return tile + FloatOrder<kParts>::a[part] * part_floats; };
      if (p.a_columns) {
        split_columns<kParts>(a + k * p.lda + m, p.lda, rows, k1 - k, special,
                              [&](int part, int w, vf x) { store(squares[part] + w * kLanes, x); });
        for (int part = 0; part < kParts; ++part) store_turned(place(part), kStepWords, squares[part]);
      } else {
        split_rows<kParts>(a + m * p.lda + k, p.lda, rows, k1 - k, special,
                           [&](int part, int i, vf x) { store(place(part) + i * kStepWords, x); });
      }
    }
  }
}

// Columns n to n + lanes of B from k0 to k1.
template <class T>
void pack_b_floats(float* to, const matrix::Problem& p, int n, int lanes, i64 k0, i64 k1, bool& special) {
  constexpr int kParts = kPartsOf<T>;
  constexpr i64 part_floats = kStepWords * kPanel;
  alignas(64) float squares[kParts][kTileWords];
  const float* const b = (const float*)p.b;
  for (i64 k = k0; k < k1; k += kStepFloats, to += kParts * part_floats) {
    for (int j = 0; j < kPanel; j += kLanes) {
      const auto place = [&](int part) { return to + FloatOrder<kParts>::b[part] * part_floats + j; };
      const int some = least(kLanes, lanes - j);
      if (p.b_columns) {
        split_rows<kParts>(b + (n + j) * p.ldb + k, p.ldb, some, k1 - k, special,
                           [&](int part, int i, vf x) { store(squares[part] + i * kLanes, x); });
        for (int part = 0; part < kParts; ++part) store_turned(place(part), kPanel, squares[part]);
      } else {
        split_columns<kParts>(b + k * p.ldb + n + j, p.ldb, some, k1 - k, special,
                              [&](int part, int w, vf x) { store(place(part) + w * kPanel, x); });
      }
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
