// SPDX-License-Identifier: MIT
// Operands of tile products. A: blocks of 16 or 32 rows, [block][step of 16 words][row][16 words], each row of a tile a line; B: panels
// [word][kPanel lanes] as they are packed for vectors, whose rows of 16 words at a stride are a tile's. Missing rows and elements are 0.
#pragma once

#include "kernels/backends/cpu/amx/block.h"
#include "kernels/gemm/cpu/pack.h"
#include "kernels/gemm/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using tiles::kLineBytes;
using tiles::kTile;
using tiles::kTileWords;
constexpr int kStepWords = 16;  // along K

// Products of words by tiles: elements of a word, and the instruction.
struct Bf16Tiles {
  static constexpr int kWord = 2;
  template <int C, int A, int B> static TILEKILN_INLINE void dot() { tiles::dot_bf16<C, A, B>(); }
};
struct Int8Tiles {
  static constexpr int kWord = 4;
  template <int C, int A, int B> static TILEKILN_INLINE void dot() { tiles::dot_ss<C, A, B>(); }
};

// Functions that make words of a storage type. line: 16 words of a row, of which `elements` >= 1 exist.
template <class T> struct TileStages {
  static constexpr int kWord = 2;
  static constexpr PackPanel lanes = pack_lanes_bf16<T>, rows = pack_rows<T, Bf16Words>;
  static TILEKILN_INLINE vf line(const T* p, i64 elements) {
    return words(load_halves(p, at_most(elements, 2 * kTile)));
  }
};
template <> struct TileStages<int8> {
  static constexpr int kWord = 4;
  static constexpr PackPanel lanes = pack_lanes_int8<false>, rows = pack_rows<int8, SignedInt8Words>;
  static TILEKILN_INLINE vf line(const int8* p, i64 elements) { return load_bytes(p, elements); }
};

// Rows of a row-major A.
template <class T>
void pack_a_rows(float* to, const T* from, i64 row, int rows, i64 elements, i64 steps, int block_rows) {
  constexpr int kElements = kStepWords * TileStages<T>::kWord;
  const i64 step = block_rows * kStepWords;
  for (int r = 0; r < rows; ++r) {
    float* line = to + r / block_rows * steps * step + r % block_rows * kStepWords;
    const T* p = from + r * row;
    const char* const soon = (const char*)(p + least(kTile, rows - 1 - r) * row);
    for (i64 k = 0; k < elements; k += kElements, line += step) {
      __builtin_prefetch(soon + k * sizeof(T), 0, 3);
      store(line, TileStages<T>::line(p + k, elements - k));
    }
  }
}
// Columns of a column-major A, a panel of rows at a time.
template <class T>
void pack_a_columns(float* to, const T* from, i64 column, int rows, i64 elements, i64 steps, int block_rows) {
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
        float* const tile = to + j / block_rows * steps * block_rows * kStepWords + s * block_rows * kStepWords +
                            j % block_rows * kStepWords;
        TILEKILN_UNROLL(16) for (int i = 0; i < kLanes; ++i) store(tile + i * kStepWords, r[i]);
      }
    }
  }
}

// Rows m0 to m1 of A from k0 to k1.
template <class T>
void pack_a(float* to, const matrix::Problem& p, int m0, int m1, i64 k0, i64 k1, int block_rows) {
  constexpr int kElements = kStepWords * TileStages<T>::kWord;
  const i64 steps = (k1 - k0 + kElements - 1) / kElements;
  const int rows = m1 - m0, missing = (rows + kTile - 1) / kTile * kTile - rows;
  for (i64 s = 0; missing && s < steps; ++s) {
    float* const block = to + (rows / block_rows * steps + s) * block_rows * kStepWords;
    __builtin_memset(block + rows % block_rows * kStepWords, 0, missing * kStepWords * sizeof(float));
  }
  if (p.a_columns)
    pack_a_columns<T>(to, (const T*)p.a + k0 * p.lda + m0, p.lda, rows, k1 - k0, steps, block_rows);
  else
    pack_a_rows<T>(to, (const T*)p.a + m0 * p.lda + k0, p.lda, rows, k1 - k0, steps, block_rows);
}

// Columns n to n + lanes of a B that is a matrix, from k0 to k1, a panel.
template <class T> void pack_b(float* to, const matrix::Problem& p, int n, int lanes, i64 k0, i64 k1) {
  if (p.b_columns)
    TileStages<T>::rows(to, (const T*)p.b + n * p.ldb + k0, p.ldb, lanes, k1 - k0);
  else
    TileStages<T>::lanes(to, (const T*)p.b + k0 * p.ldb + n, p.ldb, lanes, k1 - k0);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
