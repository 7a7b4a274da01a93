// The loader of the forward over arrays: deals out tiles and copies their queries, keys and values.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/shared.h"

namespace tilekiln::cuda::fmha_fwd {

// Panels of 64 columns of `rows` rows, from (row, sequence, batch, head).
template <int kPanels> TILEKILN_DEVICE void load_panels(const TensorMap& map, uint32_t to, int rows, uint64_t& full,
                                                        int row, int sequence, int batch, int head) {
#pragma unroll
  for (int i = 0; i < kPanels; ++i) tensor_load(to + i * rows * 128, map, full, 64 * i, row, sequence, batch, head);
}

// Queries of a tile to the warpgroups, with what the tile is: one thread. `count`: tiles so far.
TILEKILN_DEVICE void hand_out(const Row& p, Shared& s, const Tile& tile, uint32_t count, int row, int sequence,
                              int batch) {
  for (int w = 0; w < kWarpgroups; ++w) {
    const int slot = count % kQStages;
    uint64_t& full = s.q_full[slot][w];
    wait(s.q_empty[slot][w], (count / kQStages & 1) ^ 1);
    s.tile[count % kTileSlots][w] = tile;
    arrive_expecting(full, kQBytes);
    load_panels<kPanelsQ>(p.q, shared_address(s.q[slot][w]), 64, full, row + tile.row + 64 * w, sequence, batch,
                          tile.h);
  }
}

// There are no more tiles: one thread.
TILEKILN_DEVICE void end_tiles(Shared& s, uint32_t count) {
  for (int w = 0; w < kWarpgroups; ++w) {
    const int slot = count % kQStages;
    wait(s.q_empty[slot][w], (count / kQStages & 1) ^ 1);
    s.tile[count % kTileSlots][w].row = -1;
    arrive(s.q_full[slot][w]);
  }
}

// The tile that a CTA does after those before it; the counter wraps to zero by itself.
TILEKILN_DEVICE int next_tile(const Row& p) { return int(atomicInc(p.next_tile, p.tiles - 1)) + int(gridDim.x); }

// The place in the order of keys of key tile i of `tile`: from its last one down, then the sink columns'.
TILEKILN_DEVICE int key_place(const Tile& tile, int i) {
  const int main_tiles = tile.last - tile.first;
  return (i < main_tiles ? tile.last - 1 - i : main_tiles + tile.sinks - 1 - i) * kKeys;
}

// One thread.
TILEKILN_DEVICE void load(const Row& p, Shared& s) {
  uint32_t step = 0, count = 0;  // key tiles and tiles so far
  for (int t = blockIdx.x, following; t < p.tiles; t = following) {
    Tile tile;
    Keys keys;
    if (!Order::decode(p, t, tile, keys)) {
      following = next_tile(p);
      continue;
    }
    const bool group = p.features & kGroup;
    const int row_q = group ? kFar - tile.seqlen_q : 0, sequence_q = group ? tile.start_q + tile.seqlen_q : 0;
    const int row_k = group ? kFar - tile.seqlen_k : 0, sequence_k = group ? keys.first + tile.seqlen_k : 0;
    const int batch = group ? kFar : tile.b, head_k = tile.h / (p.nhead_q / p.nhead_k);
    const int tiles = tile.last - tile.first + tile.sinks;
    const auto load_k = [&](int i, uint32_t at) {
      const int slot = at % kStages;
      wait(s.k_empty[slot], (at / kStages & 1) ^ 1);
      arrive_expecting(s.k_full[slot], kKBytes);
      load_panels<kPanelsQ>(p.k, shared_address(s.k[slot]), kKeys, s.k_full[slot], row_k + key_place(tile, i),
                            sequence_k, batch, head_k);
    };
    const auto load_v = [&](int i, uint32_t at) {
      const int slot = at % kStages;
      wait(s.v_empty[slot], (at / kStages & 1) ^ 1);
      arrive_expecting(s.v_full[slot], kVBytes);
      load_panels<kPanelsV>(p.v, shared_address(s.v[slot]), kKeys, s.v_full[slot], row_k + key_place(tile, i),
                            sequence_k, batch, head_k);
    };
    if (tiles > 0) load_k(0, step);
    hand_out(p, s, tile, count, row_q, sequence_q, batch);
    ++count;
    // The next tile is asked for when two key tiles are left: earlier, and CTAs run out of work at different times (6 % of a
    // causal forward); later, and the answer is waited for.
    const int ask = max(tiles - 2, 0);
    if (tiles == 0) following = next_tile(p);
    for (int i = 0; i < tiles; ++i, ++step) {
      if (i == ask) following = next_tile(p);
      if (i + 1 < tiles) load_k(i + 1, step + 1);
      load_v(i, step);
    }
  }
  end_tiles(s, count);
}

}  // namespace tilekiln::cuda::fmha_fwd
