// SPDX-License-Identifier: MIT
// The scratch memory of a unit of gemm: its parts and their sizes.
#pragma once

#include "kernels/gemm/cpu/pack.h"
#include "kernels/gemm/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Sums that are taken up again and put down cost 3 % of a block of 128 words and .5 % of one of 1024, whose panel of B runs through L2 as
// fast as from L1: 1.5 to 3 % of fp32 and bf16 from 512 on. 2048 words are as fast, 256 slower than 128.
constexpr int kUnitColumns = 256;
constexpr int kTileRows = 120;    // their words of A and a panel share L2
constexpr int kMostRows = 256;    // of a tile that an algorithm names, or of a product by groups
constexpr int kTileWords = 1024;  // before sums wait for the next
// A tile that is alone: a panel is packed for it alone, and what the next is packed from is asked for in the meantime, which L2 holds of so
// many words. bf16 of 128 rows with a column-major B: 83 % of the peak, 67 % in two tiles.
constexpr int kLoneRows = 240;
constexpr int kLoneWords = 128;
constexpr int kReadyWords = 512;  // of packed panels: 64 rows of bf16 gain 2 % over 128 words, 128 rows 8, 200 rows 4
// Packed panels that memory gives slower than so few rows are multiplied: all blocks of rows take a stretch of a panel out of L1 and
// share the lines of the next between them, so that memory never waits for arithmetic; 16 rows of bf16 take 0.85 of the time that they
// take by 512 words. One block (of a few more rows: tall_product) asks so many bytes ahead of itself; one row is left to the processor's
// own prefetching. A panel is read from end to end: where it is left after 2048 words for those of its neighbours, fp32 of 1 to 8 rows
// loses 1 to 5 %, 9 to 18 rows 4 to 10.
constexpr int kStreamBlocks = kPanel == matrix::kPanelLanes ? 3 : 0;
constexpr int kStreamWords = 1024;
constexpr int kStretchWords = 64;
constexpr int kStreamAhead = 8192;
// Bytes of an fp32 B that is read as it lies: 256 and 512 squared gain 2 and 1 % over packing it. Narrow panels of a wide B lie in few
// sets of the cache and lose.
constexpr i64 kNearBytes = kLanes == 16 ? 1 << 20 : 0;
// Rows from which such a B is packed where its rows lie across lines: 128 squared gains 3 to 10 %, 512 squared 2 to 4, 64 rows 2; 24 rows
// lose 5 to 8. NumPy's large arrays begin 16 bytes into a line.
constexpr int kUnalignedRows = 6 * kRows;
constexpr int kChunkWords = 2048;          // packed at once for all tiles of a group
constexpr int kGroupRows = 8 * kTileRows;  // tiles whose sums wait for the next chunk
constexpr int kCopyRow = kTileWords + 16;  // words
constexpr int kPieces = 16;                // groups of k in a tile of words of a product by groups
constexpr int kPieceWords = 128;           // such a tile: a panel of them lies in L1
constexpr int kPieceRow = kPieceWords + 16;
constexpr int kGroupStarts = 16384;
static_assert(kGroupStarts >= kMostRows * kPieces);

// Columns of a unit of a product that is transposed (turned.h): A is packed for each. 0: none is, by targets with narrow panels.
constexpr int kTurnedColumns = kLanes == 16 ? 1024 : 0;

constexpr float kLeast =
    0x1p-100f;  // what is less everywhere counts as 0: its factor would leave fp32's normal numbers

// Rows of A whose sums a thread has: units of a call share them. First in scratch memory, which says that a call begins by zeros there.
struct KnownStarts {
  const void* a;  // null: none
  int first, end, k;
};
constexpr int kMostStarts = 4096;
static_assert(kMostStarts >= kMostRows);

struct GemmScratch {
  KnownStarts known;
  alignas(64) float b[kChunkWords * kUnitColumns];
  alignas(64) float sums[kGroupRows * kUnitColumns];
  alignas(64) float a[(kMostRows + kPanel) * kCopyRow];
  alignas(64) float block[kMostBlockRows * kPanel];
  alignas(64) float turned[(kTurnedColumns + kLanes) * kPanel];  // rows of B by rows of A
  alignas(64) float turned_block[kLanes * kPanel];
  alignas(64) float factors[kPieces * matrix::kPanelLanes];  // of a panel's groups, where they are no fp32
  int starts[kMostStarts + kRows];                           // -128 times the sums of A's rows
  int group_starts[kGroupStarts];  // the same of a row's stretches, with what b's elements are too much
};

#if TILEKILN_QUADS
constexpr int kExcess = 128 - kQuadZero;  // of an unsigned byte of a panel, in products
// starts[i] = -kExcess times the sum of row m0 + i, modulo 2^32
TILEKILN_ONE_COPY inline void start_rows(int* starts, const matrix::Problem& p, int m0, int m1) {
  const int8* a = (const int8*)p.a;
  if (!p.a_columns) {
    for (int m = m0; m < m1; m += kLanes) {
      alignas(64) int totals[kLanes];
      store((float*)totals, byte_totals(a + m * p.lda, p.lda, m1 - m, p.k));
      for (int i = 0; i < least(m1 - m, kLanes); ++i)
        starts[m - m0 + i] = int(-uint32_t(kExcess) * uint32_t(totals[i]));
    }
    return;
  }
  __builtin_memset(starts, 0, (m1 - m0) * sizeof *starts);
  for (i64 k = 0; k < p.k; ++k) {
    const int8* row = a + k * p.lda + m0;
    for (int i = 0; i < m1 - m0; ++i) starts[i] = int(uint32_t(starts[i]) - uint32_t(kExcess) * uint32_t(int(row[i])));
  }
}
// Starts of rows m0 to m1, which are made where they are not known.
TILEKILN_ONE_COPY inline const int* starts_of(GemmScratch& x, const matrix::Problem& p, int m0, int m1) {
  KnownStarts& known = x.known;
  const bool same = known.a == p.a && known.k == p.k && known.first <= m0;
  if (same && m1 <= known.end) return x.starts + (m0 - known.first);
  const bool next = same && m0 == known.end && m1 - known.first <= kMostStarts;
  known = {p.a, next ? known.first : m0, m1, p.k};
  start_rows(x.starts + (m0 - known.first), p, m0, m1);
  return x.starts + (m0 - known.first);
}
#endif

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
