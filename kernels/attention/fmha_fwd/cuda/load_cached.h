// The loader of the forward over a KV cache, of four warps. Keys and values come in one of two ways:
//
//   boxes: pages hold whole key tiles or many rows of one, and the copy engine takes a box from each. Warp 0 loads queries and keys,
//          warp 1 values.
//   rows:  (kRows) pages are smaller, and every warp copies a quarter of the tile, 16 bytes a lane, each row from its own page.
//
// The copy engine takes some 50 cycles a box beside 5.6 for each of its rows, so that boxes of 32 rows give 0.78 of the speed of
// contiguous keys, of 16 rows 0.64 and of one 0.10; rows 0.70, whatever the page (H100, head dim 128).
//
// Warp 3 works out which tile is next while the one before is being loaded, and hands it to the others in shared memory.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/load.h"
#include "kernels/backends/cuda/mma.h"

namespace tilekiln::cuda::fmha_fwd {

// Writes the CTA's next tile into slot `count`, after position t of the order if that is none. One thread of warp 3.
TILEKILN_DEVICE void find_work(const Row& p, Shared& s, uint32_t count, int t) {
  wait(s.work_empty[count % 2], (count / 2 & 1) ^ 1);
  Work& work = s.work[count % 2];
  work.tile.row = -1;
  for (; t < p.tiles; t = next_tile(p)) {
    Tile tile;
    Keys keys;
    if (!Order::decode(p, t, tile, keys)) continue;
    int low = 0;
    if (p.features & kMask) {  // what no row of the tile sees
      low = tile.row + tile.shift - p.left;
      keys.count = min(keys.count, min(tile.row + kQueryRows, tile.seqlen_q) + tile.shift + p.right);
    }
    work.tile = tile, work.keys = keys, work.low = low;
    break;
  }
  arrive(s.work_full[count % 2]);
}

// Rows [first, first + rows) of the keys of `work`: where they lie, counted in rows from the start of the cache, -1: nowhere. Keys
// from keys.count on, and those before `low` that are no sink columns, mean nothing, and neither does their page's number.
TILEKILN_DEVICE int row_at(const Row& p, const Work& work, int page_rows, int first, int rows) {
  const int sinks = p.sink_size;
  if (first >= work.keys.count || (first + rows <= work.low && first >= sinks)) return -1;
  const Page page = find_page(p, work.keys, work.keys.first + first);
  return page.number * page_rows + page.key;
}

// A quarter of a key tile: the rows r of which r / 4 % 4 is `warp`, eight lanes a row of a panel. `row`: where row lane % 4 of quartet lane / 4
// lies, or -1 for zeros.
template <int kPanels>
TILEKILN_DEVICE void copy_rows(const uint16_t* from, uint32_t step, int hdim, uint32_t to, int row, int warp,
                               int lane) {
  const int chunk = lane & 7, at = 4 * warp + (lane >> 3);
  const char* const source = reinterpret_cast<const char*>(from) + chunk * 16;
  const uint32_t target = to + at * 128 + ((chunk ^ at) & 7) * 16;
#pragma unroll
  for (int i = 0; i < kKeys / 16; ++i) {
    const int place = __shfl_sync(~0u, row, 4 * i + (lane >> 3));
    const char* const line = source + uint64_t(uint32_t(place)) * step;
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel)
      copy_async(target + (panel * kKeys + 16 * i) * 128, line + panel * 128,
                 place >= 0 && panel * 64 + chunk * 8 < hdim);
  }
}

TILEKILN_DEVICE void load_rows(const Row& p, Shared& s, int warp, int lane) {
  uint32_t step = 0;
  int count = -1;  // no tile: the first one is looked for
  for (;; ++count) {
    const Work& work = s.work[count & 1];
    const Tile& tile = work.tile;
    int tiles = 0;
    if (count >= 0) {
      wait(s.work_full[count & 1], count / 2 & 1);
      if (field(tile.row) < 0) break;
      tiles = field(tile.last) - field(tile.first) + field(tile.sinks);
    }
    const int head_k = tiles ? field(tile.h) / (p.nhead_q / p.nhead_k) : 0;
    const uint16_t* const k = p.k_rows + head_k * p.k_head;
    const uint16_t* const v = p.v_rows + head_k * p.v_head;
    const auto row_of = [&](int i) {
      const int at = (lane >> 2) * 16 + 4 * warp + (lane & 3);
      return i < tiles && at < kKeys ? row_at(p, work, p.k_page, key_place(tile, i) + at, 1) : -1;
    };
    int row_k = row_of(0), row_v = -1, next_row = row_of(1);
    // Step i loads keys i and values i - 1, and knows the rows of i + 1: pages are not waited for.
    const int ask = max(tiles - 1, 0);
    for (int i = 0; i <= tiles; ++i) {
      if (i < tiles) {
        const int slot = (step + i) % kStages;
        wait(s.k_empty[slot], ((step + i) / kStages & 1) ^ 1);
        copy_rows<kPanelsQ>(k, p.k_step, p.hdim_q, shared_address(s.k[slot]), row_k, warp, lane);
        arrive_when_copied(s.k_full[slot]);
      }
      if (i == 0 && count >= 0 && warp == 0) {
        if (lane == 0) hand_out(p, s, tile, count, kFar - tile.seqlen_q, tile.start_q + tile.seqlen_q, kFar);
        __syncwarp();
      }
      if (i > 0) {
        const int slot = (step + i - 1) % kStages;
        wait(s.v_empty[slot], ((step + i - 1) / kStages & 1) ^ 1);
        copy_rows<kPanelsV>(v, p.v_step, p.hdim_v, shared_address(s.v[slot]), row_v, warp, lane);
        arrive_when_copied(s.v_full[slot]);
      }
      row_v = row_k, row_k = next_row;
      next_row = row_of(i + 2);
      if (i == ask && warp == 3) {
        if (lane == 0) find_work(p, s, count + 1, count < 0 ? blockIdx.x : next_tile(p));
        __syncwarp();
      }
    }
    step += tiles;
    if (count >= 0) warp_arrive(s.work_empty[count & 1], lane);
  }
  if (warp == 0 && lane == 0) end_tiles(s, count);
}

// One thread each of warps 0 (queries and keys) and 1 (values). With whole warps, whose lanes look pages up, it is 10 % slower.
template <bool kValues> TILEKILN_DEVICE void load_boxes(const Row& p, Shared& s) {
  constexpr int kPanels = kValues ? kPanelsV : kPanelsQ;
  const TensorMap& map = kValues ? p.v : p.k;
  const int page_rows = kValues ? p.v_page : p.k_page;
  uint32_t step = 0, count = 0;
  for (;; ++count) {
    wait(s.work_full[count % 2], count / 2 & 1);
    const Work& work = s.work[count % 2];
    const Tile& tile = work.tile;
    if (tile.row < 0) break;
    const int tiles = tile.last - tile.first + tile.sinks, head = tile.h / (p.nhead_q / p.nhead_k);
    const int ask = max(tiles - 2, 0);
    for (int i = 0; i < max(tiles, 1); ++i) {
      if (i < tiles) {
        const int slot = step % kStages, first = key_place(tile, i);
        uint64_t& full = kValues ? s.v_full[slot] : s.k_full[slot];
        const uint32_t to = shared_address(kValues ? s.v[slot] : s.k[slot]);
        wait(kValues ? s.v_empty[slot] : s.k_empty[slot], (step / kStages & 1) ^ 1);
        arrive_expecting(full, kValues ? kVBytes : kKBytes);
        for (int at = 0; at < kKeys; at += p.box) {
          const int row = row_at(p, work, page_rows, first + at, p.box);
          const int left = row < 0 ? 0 : min(work.keys.count - first - at, p.box);
          load_panels<kPanels>(map, to + at * 128, kKeys, full, kFar - left, max(row, 0) + left, kFar, head);
        }
        ++step;
      }
      if (kValues) continue;
      if (i == 0) hand_out(p, s, tile, count, kFar - tile.seqlen_q, tile.start_q + tile.seqlen_q, kFar);
      if (i == ask) arrive(s.ask);
    }
    arrive(s.work_empty[count % 2]);
  }
  if (!kValues) end_tiles(s, count);
}

// One thread of warp 3.
TILEKILN_DEVICE void find_works(const Row& p, Shared& s) {
  for (uint32_t count = 0;; ++count) {
    find_work(p, s, count, count == 0 ? blockIdx.x : next_tile(p));
    if (s.work[count % 2].tile.row < 0) return;
    wait(s.ask, count & 1);
  }
}

// Four warps.
TILEKILN_DEVICE void load_cached(const Row& p, Shared& s, int thread) {
  const int warp = uniform(thread >> 5), lane = thread & 31;
  if (p.features & kRows) {
    load_rows(p, s, warp, lane);
  } else if (lane == 0) {
    if (warp == 0) load_boxes<false>(p, s);
    if (warp == 1) load_boxes<true>(p, s);
    if (warp == 3) find_works(p, s);
  }
}

}  // namespace tilekiln::cuda::fmha_fwd
