// SPDX-License-Identifier: MIT
// Steps that the forward's loaders of 16 and of 8 bits share: tiles are dealt out, and their queries copied.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/shared.h"

namespace tilekiln::cuda::fmha_fwd {

// The position in the order of tiles that a CTA does after those before it, for a thread or a warp. The counter wraps
// to zero by itself.
template <bool kWarp = false> TILEKILN_DEVICE int next_position(const Params& p) {
  if (!kWarp) return int(atomicInc(p.next_tile, p.tiles - 1)) + int(gridDim.x);
  return uniform(threadIdx.x % 32 == 0 ? next_position(p) : 0);
}

// The next tile is asked for when so many of `tiles` key tiles are loaded: earlier, and CTAs run out of work at
// different times (6 % of a causal forward); later, and the answer is waited for. A map takes longer to make.
TILEKILN_DEVICE int ask_at(int tiles) { return max(tiles - (kMapped ? 4 : 2), 0); }

// TMA's coordinates of row 0 of a sequence: of packed sequences by how much the row behind the last is ahead of it.
struct Origin {
  int row;
  Outer outer;

  TILEKILN_DEVICE Origin of(const Params& p, const Tile& tile, int seqlen, int start, int head) {
    if (!(features_of(p) & kGroup)) return {0, {0, tile.b, head}};
    return {kFar - seqlen, {start + seqlen, kFar, head}};
  }
};

// 64 rows of q from `row`. With dropout eight at a time, in the order that row_of_warp says.
TILEKILN_DEVICE void load_queries(const Params& p, const StageOf<QueryTiles>& q, uint64_t& full, const Origin& origin,
                                  int row) {
  if (kFp8 || !(features_of(p) & kDropout)) return q.load_rows(p.q, full, origin.row + row, origin.outer);
#pragma unroll 1
  for (int i = 0; i < 8; ++i)
    q.load_rows(p.q, full, origin.row + row + 8 * ((i & 4) + (i & 1) * 2 + (i & 2) / 2), origin.outer, 8 * i);
}

// Hands tiles to the warpgroups, with their queries.
struct Dealer {
  const Params& p;
  Shared& s;
  uint32_t count = 0;  // tiles so far

  __device__ __forceinline__ Loader<QueryTiles> queries_of(int w) const {
    return Loader<QueryTiles>({s.q[w], s.of_q[w]}, {count});
  }
  __device__ __forceinline__ Tile& tile_of(int w) const { return s.tile[w][CountedState<kTileSlots>{count}.index()]; }
  __device__ __forceinline__ void hand_out(const Tile& tile) {
    const Origin origin = Origin::of(p, tile, tile.seqlen_q, tile.start_q, tile.h);
    for (int w = 0; w < kWarpgroups; ++w) {
      const auto to = queries_of(w);
      const auto& q = to.acquire();
      tile_of(w) = tile;
      to.expect(q.kBytes);
      load_queries(p, q, to.full(), origin, tile.row + 64 * w);
    }
    ++count;
  }
  // There are no more tiles.
  __device__ __forceinline__ void end() {
    for (int w = 0; w < kWarpgroups; ++w) {
      const auto to = queries_of(w);
      to.acquire();
      Tile last = {};  // whole: what is asked of it before its row is looked at must be there
      last.row = -1;
      tile_of(w) = last;
      to.commit();
    }
  }
};

}  // namespace tilekiln::cuda::fmha_fwd
