// SPDX-License-Identifier: MIT
// K, V and Q as operands of tiles whose rows are queries: of S = Q K^T and O = P V neither Q nor P nor O is transposed. Keys come in
// groups of 32. Of K they are tiles of 16 words, which are pairs of head dims, by 16 keys: [hdim / 32][2]; of V tiles of 16 pairs of
// keys by 16 head dims: [hdim / 16], with pairs as power_key says. What is missing is 0.
#pragma once

#include "kernels/attention/cpu/qtiles/storage.h"
#include "kernels/backends/cpu/amx/block.h"
#include "kernels/backends/cpu/amx/powers.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kPassRows = 32;                     // queries of a pass over the keys
constexpr int kTwoTiles = 2 * tiles::kTileWords;  // words

// Words of a group of keys. Of V too: whole pairs of tiles.
constexpr int group_words(int hdim) { return round_up(hdim, 32) / 32 * kTwoTiles; }

// The rows of a block of keys, which may lie anywhere.
struct BlockRows { const char* row[kTileK]; };

// The first `rows` rows exist. Returns the largest magnitude (powers.h).
template <class T> uint16_t load_key_groups(float* to, const BlockRows& from, int rows, int hdim) {
  vh top = zero_halves();
  for (int key = 0; key < round_up(rows, kGroupKeys); key += tiles::kTile) {
    float* tile = to + key / kGroupKeys * group_words(hdim) + key % kGroupKeys / tiles::kTile * tiles::kTileWords;
    for (int d = 0; d < hdim; d += 32, tile += kTwoTiles) {
      vf r[16];
      for (int i = 0; i < 16; ++i) {
        const vh x = key + i < rows ? load_halves((const T*)from.row[key + i] + d, hdim - d) : zero_halves();
        top = higher(top, magnitudes(x));
        r[i] = words(x);
      }
      transpose(r);
      TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) store(tile + 16 * i, r[i]);
    }
  }
  return largest(top);
}

template <class T> uint16_t load_value_groups(float* to, const BlockRows& from, int rows, int hdim) {
  vh top = zero_halves();
  for (int group = 0; group < rows; group += kGroupKeys, to += group_words(hdim)) {
    for (int pair = 0; pair < 16; ++pair) {
      const int key = group + power_key(pair);
      for (int d = 0; d < hdim; d += 32) {
        const vh even = key < rows ? load_halves((const T*)from.row[key] + d, hdim - d) : zero_halves();
        const vh odd = key + 1 < rows ? load_halves((const T*)from.row[key + 1] + d, hdim - d) : zero_halves();
        top = higher(top, higher(magnitudes(even), magnitudes(odd)));
        alignas(64) bf16 pairs[64];
        interleave(pairs, even, odd);
        float* const tile = to + d / 32 * kTwoTiles + 16 * pair;
        store(tile, load((const float*)pairs));
        store(tile + tiles::kTileWords, load((const float*)pairs + 16));
      }
    }
  }
  return largest(top);
}

// Tiles of 16 queries by 32 head dims: [hdim / 32][2]. signs: 0x8000 where q is negated.
template <class T> uint16_t load_query_groups(float* to, const void* from, i64 stride, int rows, int hdim,
                                              uint16_t signs) {
  vh top = zero_halves();
  for (int i = 0; i < kPassRows; ++i) {
    for (int d = 0; d < hdim; d += 32) {
      const vh x = i < rows ? load_halves((const T*)from + i * stride + d, hdim - d) : zero_halves();
      top = higher(top, magnitudes(x));
      store(to + d / 32 * kTwoTiles + 16 * i, words(negated(x, signs)));
    }
  }
  return largest(top);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
