// The loaders of the forward for elements of 16 bits: a warp that deals tiles out while the one before is loaded, with their queries, and two that
// copy keys and values, so that neither waits for the other's places. Of e4m3 the other warps turn values over: load.h.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/load.h"

namespace tilekiln::cuda::fmha_fwd {

// One thread.
TILEKILN_DEVICE void deal_out(const Row& p, Shared& s) {
  int t = blockIdx.x;
  for (uint32_t count = 0;; ++count) {
    Tile tile;
    Keys keys;
    while (t < p.tiles && !Order::decode(p, t, tile, keys)) t = next_position(p);
    const bool more = t < p.tiles;
    Dealt& dealt = s.dealt[count % 2];
    wait(s.dealt_empty[count % 2], (count / 2 & 1) ^ 1);
    if (more) {
      int low = 0;
      if (features_of(p) & kMask) {
        low = tile.row + tile.shift - p.left;
        keys.count = min(keys.count, min(tile.row + kQueryRows, tile.seqlen_q) + tile.shift + p.right);
      }
      dealt.tile = tile, dealt.keys = keys, dealt.low = low;
    } else {
      dealt.tile.row = -1;
    }
    arrive(s.dealt_full[count % 2]);
    if (!more) return end_tiles(s, count);
    hand_out(p, s, tile, count);
    wait(s.ask, count & 1);
    t = next_position(p);
  }
}

// Rows of a box that mean something, and the row of the first of them in the cache.
struct Box {
  int left, row;

  // Worked out where it stands: a load would sink behind the wait for a place.
  __device__ __forceinline__ void hold() { asm volatile("" : "+r"(left), "+r"(row)::"memory"); }
};

// The ways to find a tile of keys in memory.
enum Boxes {
  kWhole,  // an array's, by one thread
  kFew,  // over a cache a box of the copy engine a page, at most two: by one thread, which looks the pages up before it waits
  kMany  // more boxes: by a warp, a lane a box
};

// Keys or values of all tiles. Over a cache, rows from keys.count on, and boxes before key `low` that hold no sink column, are zero: what lies
// there, and in which page, means nothing.
template <Boxes kBoxes> TILEKILN_DEVICE void load_tiles(const Row& p, Shared& s, bool values) {
  constexpr bool kLanes = kBoxes == kMany;
  const TensorMap& map = values ? p.v : p.k;
  uint64_t *const full = values ? s.v_full : s.k_full, *const empty = values ? s.v_empty : s.k_empty;
  const uint32_t bytes = values ? kVBytes : kKBytes, places = shared_address(values ? s.v[0] : s.k[0]);
  const int page_rows = values ? p.v_page : p.k_page, lane = threadIdx.x & 31;
  const auto copy = [&](uint32_t to, uint64_t& full, int row, int sequence, int batch, int head) {
    if (kPanelsQ == kPanelsV || !values)
      load_panels<kPanelsQ>(map, to, kKeys, full, row, sequence, batch, head);
    else
      load_panels<kPanelsV>(map, to, kKeys, full, row, sequence, batch, head);
  };
  const bool first_thread = !kLanes || lane == 0;
  uint32_t step = 0;  // key tiles so far
  for (uint32_t count = 0;; ++count) {
    wait(s.dealt_full[count % 2], count / 2 & 1);
    const Dealt& dealt = s.dealt[count % 2];
    const Tile& tile = dealt.tile;
    if (tile.row < 0) return;
    const Keys keys = dealt.keys;
    const int tiles = tile.range.last - tile.range.first + tile.range.sinks, low = dealt.low;
    const int head = tile.h / (p.nhead_q / p.nhead_k);
    const Origin origin = Origin::of(p, tile, tile.seqlen_k, keys.first);
    const auto find_box = [&](int key) {
      const bool hidden = key + p.box <= low && key >= p.sink_keys;
      const int left = hidden ? 0 : max(min(keys.count - key, p.box), 0);
      const Page page = left > 0 ? find_page(p, keys, keys.first + key) : Page{0, 0};
      return Box{left, page.number * page_rows + page.key};
    };
    const int ask = ask_at(tiles);
    if (!values && tiles == 0 && first_thread) arrive(s.ask);
    for (int i = 0; i < tiles; ++i, ++step) {
      const int slot = step % kStages, first = place_of(tile, i);
      const uint32_t to = places + slot * bytes;
      const auto start = [&] {
        wait(empty[slot], (step / kStages & 1) ^ 1);
        if (first_thread) arrive_expecting(full[slot], bytes);
        if (kLanes) __syncwarp();
      };
      const auto copy_box = [&](const Box& box, int at) {
        copy(to + at * 128, full[slot], kFar - box.left, box.row + box.left, kFar, head);
      };
      if constexpr (kBoxes == kWhole) {
        start();
        copy(to, full[slot], origin.row + first, origin.sequence, origin.batch, head);
      } else if constexpr (kBoxes == kFew) {
        const bool two = p.box < kKeys;
        Box one = find_box(first), other = one;
        if (two) other = find_box(first + p.box);
        one.hold(), other.hold();
        start();
        copy_box(one, 0);
        if (two) copy_box(other, p.box);
      } else {
        Box box = find_box(first + lane * p.box);
        box.hold();
        start();
        for (int at = lane * p.box; at < kKeys; at += 32 * p.box) {
          if (at >= 32 * p.box) box = find_box(first + at);
          copy_box(box, at);
        }
      }
      if (!values && i == ask && first_thread) arrive(s.ask);
    }
    if (kLanes) __syncwarp();
    if (first_thread) arrive(s.dealt_empty[count % 2]);
  }
}

// The loader's warpgroup.
TILEKILN_DEVICE void load_apart(const Row& p, Shared& s, int warp, int lane) {
  if (warp == 2 && lane == 0) deal_out(p, s);
  if (warp > 1) return;
  if (features_of(p) & kCache) {
    if (2 * p.box < kKeys)
      load_tiles<kMany>(p, s, warp == 1);
    else if (lane == 0)
      load_tiles<kFew>(p, s, warp == 1);
  } else if (lane == 0) {
    load_tiles<kWhole>(p, s, warp == 1);
  }
}

}  // namespace tilekiln::cuda::fmha_fwd
