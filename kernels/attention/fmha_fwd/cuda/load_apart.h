// SPDX-License-Identifier: MIT
// The loaders of the forward for elements of 16 bits: a warp that deals tiles out while the one before is loaded, with
// their queries, and two that copy keys and values, so that neither waits for the other's places.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/load.h"

namespace tilekiln::cuda::fmha_fwd {

// Words of the bits of a tile's key tiles, and the map of the tile at position t.
TILEKILN_DEVICE int words_of(int seqlen_k) { return KeyRange::tiles<32 * kKeys>(seqlen_k); }
template <class A> TILEKILN_DEVICE void fill_map(const A& a, KeyMap& map, int t, int lane) {
  if constexpr (kMapped) {
    const int words = words_of(a.seqlen_k_most);
    map.fill(a.shown + int64_t(t) * words, words, lane);
  }
}

// The bits of key tiles of all tiles, 32 a warp.
template <class A> TILEKILN_DEVICE void write_bits(const A& a) {
  const int words = words_of(a.seqlen_k_most), warp = int(blockIdx.x * blockDim.x + threadIdx.x) / 32, t = warp / words;
  Tile tile;
  Keys keys;
  if (t >= a.tiles || !Order::decode(a, t, tile, keys)) return;
  const uint64_t bits = KeyMap::bits_of<kQueryRows, kKeys>(a, tile, warp - t * words, threadIdx.x & 31);
  if (threadIdx.x % 32 == 0) a.shown[warp] = bits;
}

// One thread; where tiles have maps, a warp.
TILEKILN_DEVICE void deal_out(const Params& p, Shared& s, OwnOfHalves& own, int lane) {
  Loader<DealtTiles> to(own.dealt);
  Dealer dealer{p, s};
  const bool leads = !kMapped || lane == 0;
  int t = blockIdx.x;
  for (;; to.advance()) {
    Tile tile;
    Keys keys;
    while (t < p.tiles && !Order::decode(p, t, tile, keys)) t = next_position<kMapped>(p);
    const bool more = t < p.tiles;
    if (kMapped && more) fill_map(static_cast<const Argument&>(p), own.map(to.at.count), t, lane);
    if (leads) {
      Dealt& dealt = to.acquire();
      if (more) {
        int low = 0;
        if (features_of(p) & kMask) {
          low = tile.row + tile.shift - p.left;
          keys.count = min(keys.count, min(tile.row + kQueryRows, tile.seqlen_q) + tile.shift + p.right);
        }
        dealt = {tile, keys, low};
      } else {
        dealt.tile.row = -1;
      }
      to.commit();
      if (!more) return dealer.end();
      dealer.hand_out(tile);
      own.ask.wait(to.at.count);
    }
    if (!more) return;
    t = next_position<kMapped>(p);
  }
}

// Rows of a box that mean something, and the row of the first of them in the cache.
struct Box { int left, row; };

// The ways to find a tile of keys in memory.
enum Boxes {
  kWhole,  // an array's, by one thread
  kFew,    // over a cache a box of TMA a page, at most two: by one thread, which looks the pages up before it waits
  kMany    // more boxes: by a warp, a lane a box
};

// Keys or values of all tiles, of pages of `page_rows` rows. Over a cache, rows from keys.count on, and boxes before
// key `low` that hold no sink column, are zero: what lies there, and in which page, means nothing.
template <Boxes kBoxes, class Pipe>
TILEKILN_DEVICE void load_tiles(const Params& p, OwnOfHalves& own, Loader<Pipe> to, const TensorMap& map,
                                int page_rows) {
  constexpr bool kLanes = kBoxes == kMany, kAsks = std::is_same_v<Pipe, KeyTiles>;
  const int lane = threadIdx.x & 31;
  const bool first_thread = !kLanes || lane == 0;
  for (Reader<DealtTiles> from(own.dealt, lane);; from.advance()) {
    const Dealt& dealt = from.wait();
    const Tile& tile = dealt.tile;
    if (tile.row < 0) return;
    const Keys keys = dealt.keys;
    const KeyMap* const shown = kMapped ? &own.map(from.at.count) : nullptr;
    const int tiles = kMapped ? shown->tiles : KeyRange::count(tile.range), low = dealt.low;
    const Origin origin = Origin::of(p, tile, tile.seqlen_k, keys.first, tile.h / (p.nhead_q / p.nhead_k));
    const auto find_box = [&](int key) {
      const bool hidden = key + p.box <= low && key >= p.sink_keys;
      const int left = hidden ? 0 : max(min(keys.count - key, p.box), 0);
      const Page page = left > 0 ? find_page(p, keys, keys.first + key) : Page{0, 0};
      return Box{left, page.number * page_rows + page.key};
    };
    const int ask = ask_at(tiles);
    KeyRun run = {0, 1, false};
    int begun = 0;
    if (kAsks && tiles == 0 && first_thread) own.ask.raise();
#pragma unroll 1
    for (int i = 0; kMapped || i < tiles; ++i, to.advance()) {
      if (kMapped && --run.last < run.until) {
        if (begun == shown->runs) break;
        run = KeyRun::of(shown->word[begun++]);
      }
      const int first = (kMapped ? run.last : KeyRange::tile_of(tile.range, i)) * kKeys;
      const auto start = [&]() -> const auto& {
        const auto& stage = to.acquire();
        if (first_thread) to.expect(stage.kBytes);
        if (kLanes) __syncwarp();
        return stage;
      };
      const auto copy_box = [&](const auto& stage, const Box& box, int at) {
        stage.load_rows(map, to.full(), kFar - box.left, {box.row + box.left, kFar, origin.outer.c4}, at);
      };
      if constexpr (kBoxes == kWhole) {
        start().load_rows(map, to.full(), origin.row + first, origin.outer);
      } else if constexpr (kBoxes == kFew) {
        const bool two = p.box < kKeys;
        Box one = find_box(first), other = one;
        if (two) other = find_box(first + p.box);
        hold(one.left, one.row), hold(other.left, other.row);
        const auto& stage = start();
        copy_box(stage, one, 0);
        if (two) copy_box(stage, other, p.box);
      } else {
        Box box = find_box(first + lane * p.box);
        hold(box.left, box.row);
        const auto& stage = start();
#pragma unroll 1
        for (int at = lane * p.box; at < kKeys; at += 32 * p.box) {
          if (at >= 32 * p.box) box = find_box(first + at);
          copy_box(stage, box, at);
        }
      }
      if (kAsks && i == ask && first_thread) own.ask.raise();
    }
    if constexpr (kLanes)
      from.release();
    else
      from.release_alone();
  }
}

// Warp 0 copies keys, warp 1 values.
template <Boxes kBoxes> TILEKILN_DEVICE void load_both(const Params& p, Shared& s, OwnOfHalves& own, int warp) {
  if (warp == 0)
    load_tiles<kBoxes>(p, own, Loader<KeyTiles>({s.k, s.of_k}), p.k, p.k_page);
  else
    load_tiles<kBoxes>(p, own, Loader<ValueTiles>({s.v, s.of_v}), p.v, p.v_page);
}

TILEKILN_DEVICE void produce(const Params& p, Shared& s, OwnOfHalves& own, int warp, int lane) {
  if (warp == 2 && (kMapped || lane == 0)) deal_out(p, s, own, lane);
  if (warp > 1) return;
  if (!kOwn && features_of(p) & kCache) {
    if (2 * p.box < kKeys)
      load_both<kMany>(p, s, own, warp);
    else if (lane == 0)
      load_both<kFew>(p, s, own, warp);
  } else if (lane == 0) {
    load_both<kWhole>(p, s, own, warp);
  }
}

}  // namespace tilekiln::cuda::fmha_fwd
