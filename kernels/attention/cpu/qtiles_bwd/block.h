// SPDX-License-Identifier: MIT
// The five products of a 64 x 64 block by tiles, in cells of 32 keys and 32 queries; P and dS between them are those of qlanes_bwd.
//
//   S^T = K Q^T    dP^T = V dO^T    P, dS    dV += P^T dO    dK += dS^T Q    dQ^T += K^T dS^T
//
// P and dS of a cell are 0 where its queries do not see a key.
#pragma once

#include "kernels/attention/cpu/qtiles_bwd/scratch.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kCells = 2;  // groups of a block, of keys and of queries
static_assert(kCells * kGroupKeys == kTileK && kCells * kGroupRows == kTileQ && kGroupRows == 2 * kLanes);

// The cells of a block in which some query sees some key: of a group of keys, and of queries, those [begin, end) of the other.
struct Cells {
  struct Run { int begin = kCells, end = 0; };
  Run of_keys[kCells], of_queries[kCells];

  explicit Cells(const Visible& visible) {
    for (int j = 0; j < visible.vectors; ++j) {
      const KeyRange& r = visible.range[j];
      for (int group = 0; group < kCells; ++group) {
        const int key = group * kGroupKeys;
        if (r.begin < r.end && r.begin < key + kGroupKeys && r.end > key) see(group, j / 2);
      }
    }
  }
  void see(int keys, int queries) {
    add(of_keys[keys], queries);
    add(of_queries[queries], keys);
  }
  static void add(Run& run, int at) {
    if (at < run.begin) run.begin = at;
    if (at >= run.end) run.end = at + 1;
  }
};

// Words of P, dS along the queries and dS along the keys, of vector j and the keys [begin, end), whole groups of 4.
inline void clear_cell(BwdScratch& w, int j, int begin, int end) {
  for (int key = begin; key < end; key += 2) {
    store_two_rows((bf16*)w.p_queries + key * kTileQ + j * kLanes, kTileQ, zero_halves());
    store_two_rows((bf16*)w.ds_queries + key * kTileQ + j * kLanes, kTileQ, zero_halves());
    store(w.ds_keys + key / 2 * kTileQ + j * kLanes, zero());
  }
}

template <> inline void backward_block<ComputeTiles>(BwdBlock& b, int key0, int rows, const Visible& visible) {
  TileBwdScratch& w = tiles_of(b);
  const BwdStrides& t = b.stride;
  // P or dS of 0 makes a NaN of what is none: vectors skip more of what is not seen.
  if (!w.keys_are_finite || !w.rows_are_finite) return backward_block<ComputeBf16>(b, key0, rows, visible);
  const Cells cells(visible);
  const int group0 = key0 / kGroupKeys;
  float* last = nullptr;
  const auto fetch = [&]() __attribute__((always_inline)) {
    b.ahead.step();
    b.ahead.step();
  };

  tiles::fence();
  for (int group = 0; group < kCells; ++group) {
    const int key = group * kGroupKeys;
    for (int pair = cells.of_keys[group].begin; pair < cells.of_keys[group].end; ++pair) {
      const int at = key * kTileQ + pair * kGroupRows;
      const auto multiply = [&](const float* a, i64 stride, const float* queries, float* to) {
        fetch();
        tiles::multiply_block<kTileQ>({a + (key0 + key) * stride, stride * 4, tiles::kTile * stride, tiles::kTile},
                                      queries_side(queries, 2 * pair), int(stride) / tiles::kTile, nullptr, last);
        last = to + at;
      };
      multiply(w.k, t.k, w.q_t, w.s);
      multiply(w.v, t.v, w.dout_t, w.dp);
    }
  }
  tiles::settle<kTileQ>(last);

  for (int j = 0; j < visible.vectors; ++j) {
    const KeyRange& range = visible.range[j];
    vf maximum[kVectors];  // the stages also serve the forward
    maximum[j] = zero();
    if (b.stage) b.stage(w.s, j, j + 1, range.begin, range.end, maximum, b.score);
    block_gradients<ComputeBf16>(b, j, range, visible.edges);
  }
  for (int pair = 0; pair < kCells; ++pair) {
    const Cells::Run& run = cells.of_queries[pair];
    const int begin = run.begin * kGroupKeys, end = run.end * kGroupKeys;
    for (int j = 2 * pair; begin < end && j < 2 * pair + 2; ++j) {
      const bool seen = j < visible.vectors && visible.range[j].begin < visible.range[j].end;
      clear_cell(w, j, begin, seen ? visible.range[j].begin : end);
      if (seen) clear_cell(w, j, visible.range[j].end, end);
    }
  }

  tiles::fence();
  for (int group = 0; group < kCells; ++group) {
    const auto [first, end] = cells.of_keys[group];
    if (first >= end) continue;
    const bool held = w.dk_held >> (group0 + group) & 1;
    w.dk_held |= 1u << (group0 + group);
    const auto multiply = [&](const float* p, const float* queries, i64 stride, float* sums) {
      sums += (group0 + group) * kGroupKeys * stride;
      for (int d = 0; d < stride; d += 32, sums += 4 * tiles::kTileWords) {
        fetch();
        tiles::multiply_block<0>(
            {p + group * kGroupKeys * kTileQ / 2 + first * tiles::kTile, kTileQ / 2 * 4, tiles::kTile * kTileQ / 2,
             tiles::kTile},
            {queries + first * tiles::kTile * stride + d, stride * 4, tiles::kTile, tiles::kTile * stride}, end - first,
            held ? sums : nullptr, last);
        last = sums;
      }
    };
    multiply(w.p_queries, w.dout, t.dout, w.dv_tiles);
    multiply(w.ds_queries, w.q, t.q, w.dk_tiles);
  }
  for (int pair = 0; pair < kCells; ++pair) {
    const auto [first, end] = cells.of_queries[pair];
    if (first >= end) continue;
    const bool held = w.dq_held >> pair & 1;
    w.dq_held |= 1u << pair;
    const float* const k = w.k_t + (group0 + first) * tiles::kTile * t.q;
    float* sums = w.dq_tiles + pair * kGroupRows * t.q;
    for (int d = 0; d < t.q; d += 32, sums += 4 * tiles::kTileWords) {
      fetch();
      tiles::multiply_block<0>({k + d * tiles::kTile, tiles::kLineBytes, tiles::kTileWords, tiles::kTile * t.q},
                               queries_side(w.ds_keys + first * tiles::kTile * kTileQ, 2 * pair), end - first,
                               held ? sums : nullptr, last);
      last = sums;
    }
  }
  tiles::settle(last);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
