// SPDX-License-Identifier: MIT
// K and V of a block as operands of tiles. Rows of K are rows of tiles, filled up with 0 to whole tiles of keys and head dims; of V, words
// of two keys: [16 head dims][half of the block][head dim][16 words], so that its transpose is what the product takes.
#pragma once

#include "kernels/attention/cpu/storage.h"
#include "kernels/backends/cpu/amx/block.h"
#include "kernels/backends/cpu/compute.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// Pairs of bf16 as ever, but for the products of blocks.
struct ComputeTiles : ComputeBf16 {};

constexpr int kBlockWords = kTileK / 2;  // of keys, two a word
constexpr int kGroupKeys = 32;           // that a block of tiles takes

TILEKILN_INLINE float* value_tile(float* v, int d, int word) { return v + (d / 16 * 2 + word / 16) * 256; }

template <class T> void load_k_tiles(void* to, const void* from, i64 stride, int rows, int hdim) {
  load_k_pairs<T>(to, from, stride, rows, hdim);
  const i64 row = k_copy_stride((hdim + 1) / 2);
  __builtin_memset((float*)to + rows * row, 0, (round_up(rows, kGroupKeys) - rows) * row * sizeof(float));
}

template <class T> void load_v_tiles(void* to, const void* from, i64 stride, int rows, int hdim) {
  alignas(64) float words[16 * 32];
  for (int d = 0; d < hdim; d += 32) {
    for (int w = 0; w < kBlockWords; w += 16) {
      for (int i = 0; i < 16; ++i) {
        const int key = 2 * (w + i);
        const T* const p = (const T*)from + key * stride + d;
        const vh even = key < rows ? load_halves(p, hdim - d) : zero_halves();
        const vh odd = key + 1 < rows ? load_halves(p + stride, hdim - d) : zero_halves();
        interleave((bf16*)(words + i * 32), even, odd);
      }
      for (int half = 0; half < 32; half += 16) {
        vf r[16];
        TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) r[i] = load(words + i * 32 + half);
        transpose(r);
        float* const tile = value_tile((float*)to, d + half, w);
        TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) store(tile + i * 16, r[i]);
      }
    }
  }
}

// Words of the vectors j and j + 1 of queries, a tile's row for each word.
TILEKILN_INLINE tiles::Operand queries_side(const float* words, int j) {
  return {words + j * kLanes, kTileQ * 4, tiles::kTile, tiles::kTile * kTileQ};
}

// Tells whether all numbers of `count` words, a multiple of 64, are finite: x 0 is 0.
inline bool all_finite(const float* words, int count) {
  vf sum[4] = {zero(), zero(), zero(), zero()};
  for (int i = 0; i < count; i += 64) {
    TILEKILN_UNROLL(4) for (int j = 0; j < 4; ++j) sum[j] = dot_pair(sum[j], load(words + i + 16 * j), zero());
  }
  return !any_above(abs(add(add(sum[0], sum[1]), add(sum[2], sum[3]))), zero());
}
inline bool all_finite_tiles(const float* v, int hdim) { return all_finite(v, round_up(hdim, 32) * kBlockWords); }

// Rows of words again, v_copy_stride(hdim) apart, as load_v_pairs makes them.
inline void rows_of_tiles(float* to, const float* v, int hdim) {
  const int row = v_copy_stride(hdim);
  for (int d = 0; d < row; d += 16) {
    for (int w = 0; w < kBlockWords; w += 16) {
      vf r[16];
      const float* const tile = value_tile((float*)v, d, w);
      TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) r[i] = load(tile + i * 16);
      transpose(r);
      TILEKILN_UNROLL(16) for (int i = 0; i < 16; ++i) store(to + (w + i) * row + d, r[i]);
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
