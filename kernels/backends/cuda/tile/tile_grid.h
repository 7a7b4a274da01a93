// SPDX-License-Identifier: MIT
// The tiles of a launch and how workers share them: plain data that the host fills and TileScheduler reads.
#pragma once

struct float4;

namespace tilekiln::cuda {

struct TileGrid {
  int tiles_m, tiles_n, tiles;  // of one product, and of all
  int rows_a;                   // of a stage, that TMA copies; the others are zeros, where tiles have more rows than a
  int pairs;                    // 1: clusters of two CTAs have tiles one below the other, and share their reads of b
  int group;                    // rows of tiles that are walked together, so that their operands stay in L2
  int steps;                    // stages along k of a tile
  int splits;                   // CTAs of a cluster that share the steps of one tile, all there is for them; 1: none do
  int whole, shared;            // tiles that one worker computes alone, the first ones; steps of the others together
  float4* partials;             // accumulators of tiles that workers share, int32 where sums are
  unsigned* arrivals;           // zeros, one for each warpgroup of each shared tile
};

}  // namespace tilekiln::cuda
