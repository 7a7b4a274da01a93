// SPDX-License-Identifier: MIT
// The loaders of the forward for elements of 8 bits: a thread that deals tiles out and copies their queries, keys and
// values, and three warps that turn values over (fp8.h).
#pragma once

#include "kernels/attention/fmha_fwd/cuda/fp8.h"
#include "kernels/attention/fmha_fwd/cuda/load.h"

namespace tilekiln::cuda::fmha_fwd {

TILEKILN_DEVICE void load_bytes(const Params& p, Shared& s, OwnOfBytes& own) {
  Loader<KeyTiles> keys({s.k, s.of_k});
  Loader<ValueTiles> values({s.v, s.of_v});
  Dealer dealer{p, s};
  for (int t = blockIdx.x, following; t < p.tiles; t = following) {
    Tile tile;
    Keys of;
    if (!Order::decode(p, t, tile, of)) {
      following = next_position(p);
      continue;
    }
    const Origin origin = Origin::of(p, tile, tile.seqlen_k, of.first, tile.h / (p.nhead_q / p.nhead_k));
    const int tiles = KeyRange::count(tile.range), ask = ask_at(tiles);
    const auto load = [&](auto& to, const TensorMap& map, int i) {
      const auto& stage = to.acquire();
      to.expect(stage.kBytes);
      stage.load_rows(map, to.full(), origin.row + KeyRange::tile_of(tile.range, i) * kKeys, origin.outer);
      to.advance();
    };
    keys.at = values.at;
    if (tiles > 0) load(keys, p.k, 0);
    dealer.hand_out(tile);
    if (tiles == 0) following = next_position(p);
    for (int i = 0; i < tiles; ++i) {
      if (i == ask) following = next_position(p);
      keys.at.count = values.at.count + 1;  // a number for both: registers are few
      if (i + 1 < tiles) load(keys, p.k, i + 1);
      load(values, p.v, i);
    }
  }
  values.acquire();
  own.no_more[values.at.index()] = 1;
  values.commit();
  dealer.end();
}

// Warps `warp` of kTurners.
TILEKILN_DEVICE void turn_tiles(Shared& s, OwnOfBytes& own, int warp, int lane) {
  Reader<ValueTiles> from({s.v, s.of_v}, lane);
  for (;; from.advance()) {
    const Loader<TurnedTiles> to({own.turned, own.of_turned}, from.at);
    const auto& v = from.wait();
    if (field(own.no_more[from.at.index()])) break;
    turn_over<kTurners>(v, to.acquire(), warp);
    to.commit_stores(lane);
    from.release();
  }
}

TILEKILN_DEVICE void produce(const Params& p, Shared& s, OwnOfBytes& own, int warp, int lane) {
  if (warp == 0 && lane == 0) load_bytes(p, s, own);
  if (warp > 0) turn_tiles(s, own, warp - 1, lane);
}

}  // namespace tilekiln::cuda::fmha_fwd
