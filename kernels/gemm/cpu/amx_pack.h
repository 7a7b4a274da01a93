// SPDX-License-Identifier: MIT
// Operands of tile products. A: blocks of 16 or 32 rows, [block][step of 16 words][part][row][16 words], each row of a tile a line.
// B: panels [step][part][word][kPanel lanes], of one part those that are packed for vectors: rows of 16 words at a stride are a tile's.
// Missing rows and elements are 0.
#pragma once

#include "kernels/backends/cpu/amx/block.h"
#include "kernels/backends/cpu/amx/halves.h"
#include "kernels/gemm/cpu/pack.h"
#include "kernels/gemm/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using tiles::kLineBytes;
using tiles::kTile;
using tiles::kTileWords;
constexpr int kStepWords = 16;  // along K

// Products of words by tiles: elements of a word, parts of a number, and the instruction.
struct Bf16Tiles {
  static constexpr int kWord = 2, kParts = 1, kProducts = 1;
  template <int C, int A, int B> static TILEKILN_INLINE void dot() { tiles::dot_bf16<C, A, B>(); }
};
struct Int8Tiles {
  static constexpr int kWord = 4, kParts = 1, kProducts = 1;
  template <int C, int A, int B> static TILEKILN_INLINE void dot() { tiles::dot_ss<C, A, B>(); }
};
// Bytes of b have 128 added: sums are as much too large as flips_of says.
struct FlippedTiles {
  static constexpr int kWord = 4, kParts = 1, kProducts = 1;
  template <int C, int A, int B> static TILEKILN_INLINE void dot() { tiles::dot_su<C, A, B>(); }
};
template <class Dot> constexpr bool kFlipped = std::is_same_v<Dot, FlippedTiles>;
// A number is two of bf16, its last three bits first: four products are exact.
struct Fp16Tiles : Bf16Tiles { static constexpr int kParts = 2, kProducts = 4; };

// Functions that make words of a storage type. line: 16 words of a row, of which `elements` >= 1 exist.
template <class T> struct TileStages {
  static constexpr int kWord = 2;
  static constexpr PackPanel lanes = pack_lanes_bf16<T>, rows = pack_rows<T, Bf16Words>;
  static TILEKILN_INLINE vf line(const T* p, i64 elements) {
    return words(load_halves(p, at_most(elements, 2 * kTile)));
  }
};
// Halves as they lie, whatever they hold.
template <> struct TileStages<fp16> : TileStages<bf16> {
  static TILEKILN_INLINE vf line(const fp16* p, i64 elements) {
    return TileStages<bf16>::line((const bf16*)p, elements);
  }
};
template <> struct TileStages<int8> {
  static constexpr int kWord = 4;
  static constexpr PackPanel lanes = pack_lanes_int8<false>, rows = pack_rows<int8, SignedInt8Words>;
  static TILEKILN_INLINE vf line(const int8* p, i64 elements) { return load_bytes(p, elements); }
};

template <class T> constexpr int kPartsOf = std::is_same_v<T, fp16> ? Fp16Tiles::kParts : 1;

// Words on their way to tiles, part after part, each `step` floats after the one before.
template <int kParts> struct PartsOf {
  TILEKILN_INLINE void put(float* to, i64, vf x) { store(to, x); }
  static constexpr bool special = false;
};
// Words of two fp16. Infinities and NaN become 0, as an infinity times the other part of a number would be none.
template <> struct PartsOf<2> {
  TILEKILN_INLINE void put(float* to, i64 step, vf x) {
    const SplitHalves halves(x);
    store(to, halves.low), store(to + step, halves.high);
    special |= halves.special;
  }
  bool special = false;  // some were
};
template <> struct PartsOf<3> { bool special = false; };

// Rows of a row-major A.
template <class T, class Parts>
void pack_a_rows(float* to, const T* from, i64 row, int rows, i64 elements, i64 steps, int block_rows, Parts& parts) {
  constexpr int kElements = kStepWords * TileStages<T>::kWord;
  const i64 part = block_rows * kStepWords, step = part * kPartsOf<T>;
  for (int r = 0; r < rows; ++r) {
    float* line = to + r / block_rows * steps * step + r % block_rows * kStepWords;
    const T* p = from + r * row;
    const char* const soon = (const char*)(p + least(kTile, rows - 1 - r) * row);
    for (i64 k = 0; k < elements; k += kElements, line += step) {
      __builtin_prefetch(soon + k * sizeof(T), 0, 3);
      parts.put(line, part, TileStages<T>::line(p + k, elements - k));
    }
  }
}
// Columns of a column-major A, a panel of rows at a time.
template <class T, class Parts>
void pack_a_columns(float* to, const T* from, i64 column, int rows, i64 elements, i64 steps, int block_rows,
                    Parts& parts) {
  const i64 part = block_rows * kStepWords, step = part * kPartsOf<T>;
  constexpr int kElements = kStepWords * TileStages<T>::kWord;
  alignas(64) float panel[kStepWords * kPanel];
  for (int m = 0; m < rows; m += kPanel) {
    for (i64 s = 0, k = 0; k < elements; ++s, k += kElements) {
      const i64 left = least<i64>(elements - k, kElements);
      const int words = int((left + TileStages<T>::kWord - 1) / TileStages<T>::kWord);
      TileStages<T>::lanes(panel, from + k * column + m, column, least(rows - m, kPanel), left);
      for (int j = m; j < rows && j < m + kPanel; j += kLanes) {
        vf r[kLanes];
        TILEKILN_UNROLL(16)
        for (int w = 0; w < kLanes; ++w) r[w] = w < words ? load(panel + w * kPanel + j - m) : zero();
        transpose(r);
        float* const tile = to + (j / block_rows * steps + s) * step + j % block_rows * kStepWords;
        TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) parts.put(tile + i * kStepWords, part, r[i]);
      }
    }
  }
}

// Rows m0 to m1 of A from k0 to k1.
template <class T, class Parts>
void pack_a(float* to, const matrix::Problem& p, int m0, int m1, i64 k0, i64 k1, int block_rows, Parts& parts) {
  constexpr int kElements = kStepWords * TileStages<T>::kWord;
  const i64 steps = (k1 - k0 + kElements - 1) / kElements;
  const int rows = m1 - m0, missing = (rows + kTile - 1) / kTile * kTile - rows;
  for (i64 s = 0; missing && s < steps * kPartsOf<T>; ++s) {
    float* const block = to + (rows / block_rows * steps * kPartsOf<T> + s) * block_rows * kStepWords;
    __builtin_memset(block + rows % block_rows * kStepWords, 0, missing * kStepWords * sizeof(float));
  }
  if (p.a_columns)
    pack_a_columns<T>(to, (const T*)p.a + k0 * p.lda + m0, p.lda, rows, k1 - k0, steps, block_rows, parts);
  else
    pack_a_rows<T>(to, (const T*)p.a + m0 * p.lda + k0, p.lda, rows, k1 - k0, steps, block_rows, parts);
}

// int32: what sums of a flipped b lack, -128 times those of rows m0 to m1 of a row-major A.
inline void flips_of(float* to, const matrix::Problem& p, int m0, int m1) {
  for (int m = m0; m < m1; m += kTile, to += kTile)
    store(to, times_int32(byte_totals((const signed char*)p.a + m * p.lda, p.lda, m1 - m, p.k), -128));
}

// Columns n to n + lanes of a B that is a matrix, from k0 to k1, a panel; of fp16 panels are a matrix, too.
template <class T> void pack_b(float* to, const matrix::Problem& p, int n, int lanes, i64 k0, i64 k1) {
  if (p.b_panels)
    TileStages<T>::lanes(to, (const T*)p.b + (i64(n / kPanel) * p.k + k0) * kPanel, kPanel, kPanel, k1 - k0);
  else if (p.b_columns)
    TileStages<T>::rows(to, (const T*)p.b + n * p.ldb + k0, p.ldb, lanes, k1 - k0);
  else
    TileStages<T>::lanes(to, (const T*)p.b + k0 * p.ldb + n, p.ldb, lanes, k1 - k0);
}
// The panel of columns from n on over all of k.
template <class T> void pack_panel(void* to, const matrix::Problem& p, int n) {
  pack_b<T>((float*)to, p, n, least(p.n - n, kPanel), 0, p.k);
}
// Less is faster from a core's own cache: on 16 threads 4 MB take 1.07 of the time, 16 MB .87. Tests of the emulation reach it with any.
constexpr i64 kLeastShared = tiles::kEmulated ? 0 : i64(16) << 20;
template <class T>
constexpr matrix::PackColumns kPackColumns = {pack_panel<T>, TileStages<T>::kWord, kLeastShared};
// Panels in parts, filled up with 0 to whole steps.
template <class T, class Parts>
void pack_b_parts(float* to, const matrix::Problem& p, int n, int lanes, i64 k0, i64 k1, Parts& parts) {
  constexpr int kElements = kStepWords * TileStages<T>::kWord;
  alignas(64) float whole[kStepWords * kPanel];
  for (i64 k = k0; k < k1; k += kElements, to += kPartsOf<T> * kStepWords * kPanel) {
    const i64 end = least<i64>(k1, k + kElements);
    if (end - k < kElements) __builtin_memset(whole, 0, sizeof whole);
    pack_b<T>(whole, p, n, lanes, k, end);
    for (int i = 0; i < kStepWords * kPanel; i += kLanes) parts.put(to + i, kStepWords * kPanel, load(whole + i));
  }
}

template <class T> TILEKILN_INLINE float number_of(T x) { return core::widen(x); }
// The least magnitude that has no parts.
template <class T> constexpr float kLeastSpecial = __builtin_inff();

// sums[r kPanel + j] of the rows from m and the columns from n on, and the products that PartsOf left out: of an infinity or a NaN.
template <class T> void add_specials(const matrix::Problem& p, float* sums, int m, int n, int rows, int columns) {
  const T *const a = (const T*)p.a, *const b = (const T*)p.b;
  const auto a_at = [&](int r, i64 k) {
    return number_of(p.a_columns ? a[k * p.lda + m + r] : a[(m + r) * p.lda + k]);
  };
  const auto b_at = [&](i64 k, int j) {
    return number_of(p.b_panels    ? b[(i64(n / kPanel) * p.k + k) * kPanel + j]
                     : p.b_columns ? b[(n + j) * p.ldb + k]
                                   : b[k * p.ldb + n + j]);
  };
  const auto is_special = [](float x) { return !(__builtin_fabsf(x) < kLeastSpecial<T>); };
  for (i64 k = 0; k < p.k; ++k) {
    bool any = false;
    for (int r = 0; r < rows; ++r) any |= is_special(a_at(r, k));
    for (int j = 0; j < columns; ++j) {
      const float y = b_at(k, j);
      if (!any && !is_special(y)) continue;
      for (int r = 0; r < rows; ++r) {
        const float x = a_at(r, k);
        if (is_special(x) || is_special(y)) sums[r * kPanel + j] += x * y;
      }
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
