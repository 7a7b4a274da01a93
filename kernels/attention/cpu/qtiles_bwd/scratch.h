// SPDX-License-Identifier: MIT
// The memory of one thread whose products are tiles: that of qlanes_bwd, and operands and sums as tiles take them.
#pragma once

#include "kernels/attention/cpu/qlanes_bwd/backward.h"
#include "kernels/attention/cpu/qtiles/storage.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kGroupRows = 32;  // queries that a block of tiles takes

// Sums are blocks of 32 x 32, tile after tile.
struct TileBwdScratch : BwdScratch {
  alignas(64) float k_t[kChunk / 2 * kMaxHdim];   // K^T in words along the keys: [key / 32][hdim / 16] tiles
  alignas(64) float dk_tiles[kChunk * kMaxHdim];  // [key / 32][hdim / 32]
  alignas(64) float dv_tiles[kChunk * kMaxHdim];  // [key / 32][hdim / 32]
  alignas(64) float dq_tiles[kTileQ * kMaxHdim];  // dQ^T: [query / 32][hdim / 32]
  unsigned dk_held, dq_held;                      // a bit for each group of keys, of queries, whose blocks hold sums
  bool keys_are_finite, rows_are_finite;
};

TILEKILN_INLINE TileBwdScratch& tiles_of(const BwdBlock& b) { return static_cast<TileBwdScratch&>(b.scratch); }

// Rows of 0 up to a whole group: they are operands, too.
TILEKILN_INLINE void fill_up(float* rows, i64 stride, int first, int end) {
  if (first < end) __builtin_memset(rows + first * stride, 0, sizeof(float) * (end - first) * stride);
}

template <> inline void keys_loaded<ComputeTiles>(BwdBlock& b, int keys) {
  TileBwdScratch& w = tiles_of(b);
  const BwdStrides& t = b.stride;
  const int end = round_up(keys, kGroupKeys), loaded = round_up(keys, kGroup);
  fill_up(w.k, t.k, loaded, end);
  fill_up(w.v, t.v, loaded, end);
  fill_up(w.k_keys, t.q, loaded / 2, end / 2);
  float* tile = w.k_t;
  for (int word = 0; word < end / 2; word += tiles::kTile) {
    for (int d = 0; d < t.q; d += tiles::kTile, tile += tiles::kTileWords) {
      vf r[16];
      TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) r[i] = load(w.k_keys + (word + i) * t.q + d);
      transpose(r);
      TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) store(tile + 16 * i, r[i]);
    }
  }
  w.keys_are_finite = all_finite(w.k, end * int(t.k)) && all_finite(w.v, end * int(t.v));
  w.dk_held = 0;
}

template <> inline void rows_loaded<ComputeTiles>(BwdBlock& b, int rows) {
  TileBwdScratch& w = tiles_of(b);
  const BwdStrides& t = b.stride;
  const int end = round_up(rows, kGroupRows) / 2;
  fill_up(w.q, t.q, (rows + 1) / 2, end);
  fill_up(w.dout, t.dout, (rows + 1) / 2, end);
  w.rows_are_finite = all_finite(w.q, end * int(t.q)) && all_finite(w.dout, end * int(t.dout));
  w.dq_held = 0;
}

TILEKILN_INLINE void put_sum(Into into, float* to, vf x) { store(to, into == Into::add ? add(load(to), x) : x); }

// The sums of groups of keys [group, group + 1, ...) below `end` that are held, into their rows.
inline void put_key_rows(const float* tiles, i64 stride, float* rows, Into into) {
  for (int i = 0; i < kGroupKeys; ++i) {
    for (int d = 0; d < stride; d += kLanes)
      put_sum(
          into, rows + i * stride + d,
          load(tiles + d / 32 * 4 * tiles::kTileWords + (i / 16 * 2 + d / 16 % 2) * tiles::kTileWords + i % 16 * 16));
  }
}

template <> inline void put_key_sums<ComputeTiles>(BwdBlock& b, int keys) {
  TileBwdScratch& w = tiles_of(b);
  const BwdStrides& t = b.stride;
  for (int key = 0; key < keys; key += kTileK) {
    const int some = keys - key < kTileK ? keys - key : kTileK, groups = (some + kGroupKeys - 1) / kGroupKeys;
    const unsigned held = w.dk_held >> key / kGroupKeys & ((1u << groups) - 1);
    if (!held) continue;
    const Into into = begin_keys(b, key, held == (1u << groups) - 1);
    for (int i = 0, at = key; i < groups; ++i, at += kGroupKeys) {
      if (!(held >> i & 1)) continue;
      put_key_rows(w.dk_tiles + at * t.q, t.q, w.dk + at * t.q, into);
      put_key_rows(w.dv_tiles + at * t.dout, t.dout, w.dv + at * t.dout, into);
    }
  }
}

template <> inline void put_row_sums<ComputeTiles>(BwdBlock& b, int rows) {
  TileBwdScratch& w = tiles_of(b);
  const i64 stride = b.stride.q;
  const int groups = (rows + kGroupRows - 1) / kGroupRows;
  const Into into = begin_queries(b, w.dq_held == (1u << groups) - 1);
  for (int q = 0; q < kTileQ; q += 16) {
    if (!(w.dq_held >> q / kGroupRows & 1)) continue;
    for (int d = 0; d < stride; d += 16) {
      const float* const tile = w.dq_tiles + q / kGroupRows * kGroupRows * stride + d / 32 * 4 * tiles::kTileWords +
                                (d / 16 % 2 * 2 + q / 16 % 2) * tiles::kTileWords;
      vf r[16];
      TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) r[i] = load(tile + 16 * i);
      transpose(r);
      TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) put_sum(into, w.dq + (q + i) * stride + d, r[i]);
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
