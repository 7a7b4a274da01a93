// SPDX-License-Identifier: MIT
// Estimated times of a product's tiles, and how its workers share them (tile/scheduler.h).
#pragma once
#include <algorithm>

#include "kernels/gemm/engine.h"

namespace tilekiln::cuda::gemm {

using matrix::i64;

// A kernel's tile, and what its time is estimated by.
struct Tiles {
  const char* function;
  int rows, columns;
  double compute_ns;    // of a stage
  i64 stage_bytes;      // that a CTA reads for it
  double cta_l2, l2;    // bytes a ns that one CTA gets, and all
  double parts_l2;      // with which parts are written and read
  int part_rows;        // of a part that are
  int ctas;             // that compute one tile
  int b_columns;        // of a copy of b
  bool early;           // the kernel waits for the launch before it
  int splits;           // CTAs that share the steps of a tile, as a cluster
  bool halves = false;  // of 128 rows, which may be copied in two
  [[nodiscard]] double stage_ns(i64 workers) const {
    return std::max(compute_ns, static_cast<double>(stage_bytes) / std::min(cta_l2, l2 / static_cast<double>(workers)));
  }
  [[nodiscard]] i64 part_bytes() const { return i64(rows) * columns * static_cast<i64>(sizeof(float)); }
};

// Number of CTAs, and of the tiles that one CTA computes alone.
struct Shares {
  i64 grid, whole;
  double ns;
};

inline i64 divide_up(i64 a, i64 b) { return (a + b - 1) / b; }

// Tiles of one turn of `workers` CTAs after the other; the last turn, where it is not full, may be shared. Nothing
// takes less than `least_ns`.
inline Shares share(const Tiles& of, i64 tiles, i64 steps, i64 workers, double least_ns) {
  constexpr i64 least = 4, most = i64(1) << 31;  // steps of a CTA; of 32 bits
  const i64 rest = tiles % workers;
  Shares alone = {std::min(tiles, workers), tiles,
                  std::max(least_ns, static_cast<double>(divide_up(tiles, workers) * steps) *
                                         of.stage_ns(std::min(tiles, workers)))};
  const i64 grid = tiles > rest ? workers : std::min(workers, rest * steps / least);
  if (grid <= rest || rest * steps < grid * least || rest * steps * (workers + 1) >= most) return alone;
  const i64 longest = tiles / workers * steps + divide_up(rest * steps, grid);
  constexpr double in_turn_ns = 1500;  // the last CTA of a tile begins to add when all have ended
  const double join_ns =
      in_turn_ns + static_cast<double>(2 * grid * of.part_bytes() / of.rows * of.part_rows) / of.parts_l2;
  const Shares shared = {grid, tiles - rest,
                         std::max(least_ns, static_cast<double>(longest) * of.stage_ns(grid)) + join_ns};
  return shared.ns < alone.ns ? shared : alone;
}

}  // namespace tilekiln::cuda::gemm
