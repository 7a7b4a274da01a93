// SPDX-License-Identifier: MIT
// Blocks of 32 x 32 sums in tiles 0 to 3, in memory kRow floats a row. Sums leave their tiles while the next block begins, one tile after
// the other: a tile that is being stored cannot be written, which costs 54 cycles a block where four are stored and then zeroed.
#pragma once

#include "kernels/backends/cpu/amx/tiles.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace tiles {

constexpr int kTile = 16;        // rows of a tile, and words of a row
constexpr long kLineBytes = 64;  // from row to row of a tile that lies alone
constexpr int kTileWords = kTile * kTile;

// Sums that lie tile after tile.
template <int T> TILEKILN_INLINE void leave(float* sums) {
  if (sums) store<T>(sums + T * kTileWords, kLineBytes);
}
template <int T> TILEKILN_INLINE void enter(const float* sums) {
  if (sums)
    load<T>(sums + T * kTileWords, kLineBytes);
  else
    zero<T>();
}

// Rows kRow floats apart; kRow 0: tile after tile.
template <int T, int kRow> TILEKILN_INLINE void leave(float* sums) {
  if constexpr (kRow == 0)
    leave<T>(sums);
  else if (sums)
    store<T>(sums + T / 2 * kTile * kRow + T % 2 * kTile, kRow * 4);
}
// Null: from 0.
template <int T, int kRow> TILEKILN_INLINE void enter(const float* sums) {
  if constexpr (kRow == 0)
    enter<T>(sums);
  else if (sums)
    load<T>(sums + T / 2 * kTile * kRow + T % 2 * kTile, kRow * 4);
  else
    zero<T>();
}
// All four; none are left.
template <int kRow> TILEKILN_INLINE void settle(float*& sums) {
  leave<0, kRow>(sums), leave<1, kRow>(sums), leave<2, kRow>(sums), leave<3, kRow>(sums);
  sums = nullptr;
}

TILEKILN_INLINE void settle(float*& sums) {
  leave<0>(sums), leave<1>(sums), leave<2>(sums), leave<3>(sums);
  sums = nullptr;
}

// One side of a product: bytes from row to row of a tile; floats to the tile of the next 16 rows of A, or columns of B, and to that of the
// next 16 words.
struct Operand {
  const float* at;
  long row;
  long long second, step;
};

// sums = A B, or from + A B, of pairs of bf16, over `steps` of 16 words. Those of the block before leave their tiles to `last`.
template <int kRow>
TILEKILN_INLINE void multiply_block(Operand a, Operand b, int steps, const float* from, float* last) {
  load_t1<4>(a.at, a.row), load<6>(b.at, b.row);
  leave<0, kRow>(last), enter<0, kRow>(from), dot_bf16<0, 4, 6>();
  load<7>(b.at + b.second, b.row);
  leave<1, kRow>(last), enter<1, kRow>(from), dot_bf16<1, 4, 7>();
  load_t1<5>(a.at + a.second, a.row);
  leave<2, kRow>(last), enter<2, kRow>(from), dot_bf16<2, 5, 6>();
  leave<3, kRow>(last), enter<3, kRow>(from), dot_bf16<3, 5, 7>();
  for (int i = 1; i < steps; ++i) {
    a.at += a.step, b.at += b.step;
    load_t1<4>(a.at, a.row), load<6>(b.at, b.row), dot_bf16<0, 4, 6>();
    load<7>(b.at + b.second, b.row), dot_bf16<1, 4, 7>();
    load_t1<5>(a.at + a.second, a.row), dot_bf16<2, 5, 6>();
    dot_bf16<3, 5, 7>();
  }
}

}  // namespace tiles
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
