// Steps that the forward's loaders of 16 and of 8 bits share: tiles are dealt out, and their queries copied.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/shared.h"

namespace tilekiln::cuda::fmha_fwd {

// The position in the order of tiles that a CTA does after those before it. The counter wraps to zero by itself.
TILEKILN_DEVICE int next_position(const Row& p) { return int(atomicInc(p.next_tile, p.tiles - 1)) + int(gridDim.x); }

// The next tile is asked for when so many of `tiles` key tiles are loaded: earlier, and CTAs run out of work at different times (6 % of a causal
// forward); later, and the answer is waited for.
TILEKILN_DEVICE int ask_at(int tiles) { return max(tiles - 2, 0); }

// TMA's coordinates of row 0 of a sequence: of packed sequences by how much the row behind the last is ahead of it.
struct Origin {
  int row;
  Outer outer;

  TILEKILN_DEVICE Origin of(const Row& p, const Tile& tile, int seqlen, int start, int head) {
    if (!(features_of(p) & kGroup)) return {0, {0, tile.b, head}};
    return {kFar - seqlen, {start + seqlen, kFar, head}};
  }
};

// 64 rows of q from `row`. With dropout eight at a time, in the order that row_of_warp says.
TILEKILN_DEVICE void load_queries(const Row& p, const StageOf<QueryTiles>& q, uint64_t& full, const Origin& origin,
                                  int row) {
  if (!(features_of(p) & kDropout)) return q.load_rows(p.q, full, origin.row + row, origin.outer);
#pragma unroll 1
  for (int i = 0; i < 8; ++i)
    q.load_rows(p.q, full, origin.row + row + 8 * ((i & 4) + (i & 1) * 2 + (i & 2) / 2), origin.outer, 8 * i);
}

// Hands tiles to the warpgroups, with their queries.
struct Dealer {
  const Row& p;
  Shared& s;
  PipelineState<kQStages> at;
  PipelineState<kTileSlots> tile_at;

  __device__ __forceinline__ void hand_out(const Tile& tile) {
    const Origin origin = Origin::of(p, tile, tile.seqlen_q, tile.start_q, tile.h);
    for (int w = 0; w < kWarpgroups; ++w) {
      const Producer<QueryTiles> to({s.q[w], s.of_q[w]}, at);
      const auto& q = to.acquire();
      s.tile[w][tile_at.index()] = tile;
      to.expect(q.kBytes);
      load_queries(p, q, to.full(), origin, tile.row + 64 * w);
    }
    at.advance(), tile_at.advance();
  }
  // There are no more tiles.
  __device__ __forceinline__ void end() {
    for (int w = 0; w < kWarpgroups; ++w) {
      const Producer<QueryTiles> to({s.q[w], s.of_q[w]}, at);
      to.acquire();
      Tile last = {};  // whole: what is asked of it before its row is looked at must be there
      last.row = -1;
      s.tile[w][tile_at.index()] = last;
      to.commit();
    }
  }
};

}  // namespace tilekiln::cuda::fmha_fwd
