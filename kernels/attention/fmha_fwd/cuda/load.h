// The common steps of the forward's loaders, and the loader of e4m3: one thread deals out tiles and copies their queries, keys and values.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/shared.h"

namespace tilekiln::cuda::fmha_fwd {

// Panels of kColumns columns of `rows` rows, from (row, sequence, batch, head).
template <int kPanels> TILEKILN_DEVICE void load_panels(const TensorMap& map, uint32_t to, int rows, uint64_t& full,
                                                        int row, int sequence, int batch, int head) {
#pragma unroll
  for (int i = 0; i < kPanels; ++i)
    tensor_load(to + i * rows * 128, map, full, kColumns * i, row, sequence, batch, head);
}

// The position in the order of tiles that a CTA does after those before it. The counter wraps to zero by itself.
TILEKILN_DEVICE int next_position(const Row& p) { return int(atomicInc(p.next_tile, p.tiles - 1)) + int(gridDim.x); }

// The first key of key tile i of `tile`: from its last one down, then the sink columns'.
TILEKILN_DEVICE int place_of(const Tile& tile, int i) {
  const int main_tiles = tile.range.last - tile.range.first;
  return (i < main_tiles ? tile.range.last - 1 - i : main_tiles + tile.range.sinks - 1 - i) * kKeys;
}

// The next tile is asked for when so many of `tiles` key tiles are loaded: earlier, and CTAs run out of work at different times (6 % of a causal
// forward); later, and the answer is waited for.
TILEKILN_DEVICE int ask_at(int tiles) { return max(tiles - 2, 0); }

// The first row of an array's tile, as the copy engine counts: of packed sequences by how much the row behind their last is ahead of it.
struct Origin {
  int row, sequence, batch;

  TILEKILN_DEVICE Origin of(const Row& p, const Tile& tile, int seqlen, int start) {
    if (!(features_of(p) & kGroup)) return {0, 0, tile.b};
    return {kFar - seqlen, start + seqlen, kFar};
  }
};

// 64 rows of q from `row`. With dropout eight at a time, in the order that row_of_warp says.
TILEKILN_DEVICE void load_queries(const Row& p, uint32_t to, uint64_t& full, const Origin& origin, int row, int head) {
  if (!(features_of(p) & kDropout))
    return load_panels<kPanelsQ>(p.q, to, 64, full, origin.row + row, origin.sequence, origin.batch, head);
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int panel = 0; panel < kPanelsQ; ++panel)
      tensor_load(to + (panel * 64 + 8 * i) * 128, p.q, full, kColumns * panel,
                  origin.row + row + 8 * ((i & 4) + (i & 1) * 2 + (i & 2) / 2), origin.sequence, origin.batch, head);
}

// The queries of a tile to the warpgroups, and what the tile is. `count`: tiles so far.
TILEKILN_DEVICE void hand_out(const Row& p, Shared& s, const Tile& tile, uint32_t count) {
  const Origin origin = Origin::of(p, tile, tile.seqlen_q, tile.start_q);
  for (int w = 0; w < kWarpgroups; ++w) {
    const int slot = count % kQStages;
    uint64_t& full = s.q_full[slot][w];
    wait(s.q_empty[slot][w], (count / kQStages & 1) ^ 1);
    s.tile[count % kTileSlots][w] = tile;
    arrive_expecting(full, kQBytes);
    load_queries(p, shared_address(s.q[slot][w]), full, origin, tile.row + 64 * w, tile.h);
  }
}

// There are no more tiles.
TILEKILN_DEVICE void end_tiles(Shared& s, uint32_t count) {
  for (int w = 0; w < kWarpgroups; ++w) {
    const int slot = count % kQStages;
    wait(s.q_empty[slot][w], (count / kQStages & 1) ^ 1);
    Tile last = {};  // whole: what is asked of it before its row is looked at must be there
    last.row = -1;
    s.tile[count % kTileSlots][w] = last;
    arrive(s.q_full[slot][w]);
  }
}

#ifdef TILEKILN_FP8
TILEKILN_DEVICE void load(const Row& p, Shared& s) {
  uint32_t step = 0, count = 0;  // key tiles and tiles so far
  for (int t = blockIdx.x, following; t < p.tiles; t = following) {
    Tile tile;
    Keys keys;
    if (!Order::decode(p, t, tile, keys)) {
      following = next_position(p);
      continue;
    }
    const Origin origin = Origin::of(p, tile, tile.seqlen_k, keys.first);
    const int head_k = tile.h / (p.nhead_q / p.nhead_k);
    const int tiles = tile.range.last - tile.range.first + tile.range.sinks;
    const auto load_k = [&](int i, uint32_t at) {
      const int slot = at % kStages;
      wait(s.k_empty[slot], (at / kStages & 1) ^ 1);
      arrive_expecting(s.k_full[slot], kKBytes);
      load_panels<kPanelsQ>(p.k, shared_address(s.k[slot]), kKeys, s.k_full[slot], origin.row + place_of(tile, i),
                            origin.sequence, origin.batch, head_k);
    };
    const auto load_v = [&](int i, uint32_t at) {
      const int slot = at % kStages;
      wait(s.v_empty[slot], (at / kStages & 1) ^ 1);
      arrive_expecting(s.v_full[slot], kVBytes);
      load_panels<kPanelsV>(p.v, shared_address(s.v[slot]), kKeys, s.v_full[slot], origin.row + place_of(tile, i),
                            origin.sequence, origin.batch, head_k);
    };
    if (tiles > 0) load_k(0, step);
    hand_out(p, s, tile, count);
    ++count;
    const int ask = ask_at(tiles);
    if (tiles == 0) following = next_position(p);
    for (int i = 0; i < tiles; ++i, ++step) {
      if (i == ask) following = next_position(p);
      if (i + 1 < tiles) load_k(i + 1, step + 1);
      load_v(i, step);
    }
  }
  wait(s.v_empty[step % kStages], (step / kStages & 1) ^ 1);
  s.no_more[step % kStages] = 1;
  arrive(s.v_full[step % kStages]);
  end_tiles(s, count);
}
#endif

}  // namespace tilekiln::cuda::fmha_fwd
