// Blocks of 32 x 32 sums in tiles 0 to 3, in memory kRow floats a row. Sums leave their tiles while the next block begins, one tile after
// the other: a tile that is being stored cannot be written, which costs 54 cycles a block where four are stored and then zeroed.
#pragma once

#include "kernels/backends/cpu/amx/tiles.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace tiles {

constexpr int kTile = 16;        // rows of a tile, and words of a row
constexpr long kLineBytes = 64;  // from row to row of a tile that lies alone
constexpr int kTileWords = kTile * kTile;

template <int T, int kRow> TILEKILN_INLINE void leave(float* sums) {
  if (sums) store<T>(sums + T / 2 * kTile * kRow + T % 2 * kTile, kRow * 4);
}
// Null: from 0.
template <int T, int kRow> TILEKILN_INLINE void enter(const float* sums) {
  if (sums)
    load<T>(sums + T / 2 * kTile * kRow + T % 2 * kTile, kRow * 4);
  else
    zero<T>();
}
// All four; none are left.
template <int kRow> TILEKILN_INLINE void settle(float*& sums) {
  leave<0, kRow>(sums), leave<1, kRow>(sums), leave<2, kRow>(sums), leave<3, kRow>(sums);
  sums = nullptr;
}

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
TILEKILN_INLINE void settle(float*& sums) {
  leave<0>(sums), leave<1>(sums), leave<2>(sums), leave<3>(sums);
  sums = nullptr;
}

}  // namespace tiles
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
