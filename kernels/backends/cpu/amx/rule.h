// SPDX-License-Identifier: MIT
// The exact results of tile products, over plain bytes: the instructions' own rule, which emulations share.
//
// Of bf16: e = o = 0; for each pair k of a row: e = F(fma(a[2k], b[2k], e)), o = F(fma(a[2k+1], b[2k+1], o)); then c = F(F(c) + F(e + o)).
// F makes subnormal numbers 0 of their sign; elements of a and b go through it too. Rounding is to nearest even, whatever MXCSR says.
// A NaN comes where IEEE arithmetic makes one; the payload, which the instructions do not promise, is that of 0x7fc00000.
#pragma once

#include <stdint.h>

#include "kernels/backends/target.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace tiles {

constexpr int kTileRows = 16, kTileBytes = 64;
constexpr int kColumns = 16;  // 32-bit words of a row
using Row = unsigned char[kTileBytes];

namespace rule {

inline float flushed(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  bits = (bits & 0x7f800000) == 0 ? bits & 0x80000000 : bits;
  __builtin_memcpy(&x, &bits, sizeof bits);
  return x;
}
// The lower or the upper bf16 of a word.
inline float lower(uint32_t word) {
  float x;
  word <<= 16;
  __builtin_memcpy(&x, &word, sizeof x);
  return flushed(x);
}
inline float upper(uint32_t word) { return lower(word >> 16); }

// `depth` words along a row of a.
inline void dot_bf16(Row* c, const Row* a, const Row* b, int rows, int columns, int depth) {
  for (int m = 0; m < rows; ++m) {
    float even[kColumns] = {}, odd[kColumns] = {};
    for (int k = 0; k < depth; ++k) {
      uint32_t left, right[kColumns];
      __builtin_memcpy(&left, a[m] + 4 * k, sizeof left);
      __builtin_memcpy(right, b[k], sizeof right);
      for (int n = 0; n < columns; ++n) {
        even[n] = flushed(__builtin_fmaf(lower(left), lower(right[n]), even[n]));
        odd[n] = flushed(__builtin_fmaf(upper(left), upper(right[n]), odd[n]));
      }
    }
    float sums[kColumns];
    __builtin_memcpy(sums, c[m], sizeof sums);
    for (int n = 0; n < columns; ++n) {
      sums[n] = flushed(flushed(sums[n]) + flushed(even[n] + odd[n]));
      if (sums[n] != sums[n]) sums[n] = __builtin_nanf("");
    }
    __builtin_memcpy(c[m], sums, sizeof sums);
  }
}

template <bool SignedA, bool SignedB>
inline void dot_bytes(Row* c, const Row* a, const Row* b, int rows, int columns, int depth) {
  for (int m = 0; m < rows; ++m) {
    uint32_t sums[kColumns];
    __builtin_memcpy(sums, c[m], sizeof sums);
    for (int k = 0; k < depth; ++k) {
      for (int n = 0; n < columns; ++n) {
        for (int i = 0; i < 4; ++i) {
          const unsigned char x = a[m][4 * k + i], y = b[k][4 * n + i];
          sums[n] += uint32_t((SignedA ? int8_t(x) : int(x)) * (SignedB ? int8_t(y) : int(y)));
        }
      }
    }
    __builtin_memcpy(c[m], sums, sizeof sums);
  }
}

}  // namespace rule
}  // namespace tiles
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
