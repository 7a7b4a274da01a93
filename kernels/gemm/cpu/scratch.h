// What a unit of gemm works in, and how large its parts are.
#pragma once

#include "kernels/gemm/cpu/pack.h"
#include "kernels/gemm/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// fp32 and bf16 lose 1 to 7 % at 512 with other sizes and nothing at 1024: tuning is flat.
constexpr int kUnitColumns = 256;
constexpr int kTileRows = 240;             // their words of A and accumulators share L2 with a panel
constexpr int kMostRows = 256;             // of a tile that an algorithm names, or of a product by groups
constexpr int kTileWords = 128;            // a panel of them lies in L1
constexpr int kChunkWords = 2048;          // packed at once for all tiles of a group
constexpr int kGroupRows = 4 * kTileRows;  // tiles whose sums wait for the next chunk
constexpr int kPieces = 16;                // groups of k in a tile of words
constexpr int kCopyRow = kTileWords + 16;  // words

constexpr float kLeast =
    0x1p-100f;  // what is less everywhere counts as 0: its factor would leave fp32's normal numbers

struct GemmScratch {
  alignas(64) float b[kChunkWords * kUnitColumns];
  alignas(64) float sums[kGroupRows * kUnitColumns];
  alignas(64) float a[(kTileRows + kPanel) * kCopyRow];
  alignas(64) float block[kMostBlockRows * kPanel];
  int starts[kMostRows + kRows];          // -128 times the sums of A's rows
  int group_starts[kMostRows * kPieces];  // the same of a row's stretches, with what b's elements are too much
};

template <class T> TILEKILN_INLINE T least(T a, T b) { return a < b ? a : b; }

#if TILEKILN_QUADS
// starts[i] = -128 sum of row m0 + i, modulo 2^32
inline void start_rows(int* starts, const matrix::Problem& p, int m0, int m1) {
  const int8* a = (const int8*)p.a;
  if (!p.a_columns) {
    for (int m = m0; m < m1; ++m) starts[m - m0] = int(-128u * uint32_t(total_bytes(a + m * p.lda, p.k)));
    return;
  }
  __builtin_memset(starts, 0, (m1 - m0) * sizeof *starts);
  for (i64 k = 0; k < p.k; ++k) {
    const int8* row = a + k * p.lda + m0;
    for (int i = 0; i < m1 - m0; ++i) starts[i] = int(uint32_t(starts[i]) - 128u * uint32_t(int(row[i])));
  }
}
#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
