// SPDX-License-Identifier: MIT
// Rows of the latent cache on their way into products: K as rows of words, V of bf16 in pairs of keys.
#pragma once

#include "kernels/attention/cpu/storage.h"
#include "kernels/attention/fmha_mla_decode/cpu/few_rows.h"
#include "kernels/attention/fmha_mla_decode/engine.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

constexpr int kLatent = 512, kLatentGroup = 128;  // of a row of fp8: elements, and those that share a factor

struct LatentScratch {
  alignas(64) float s[kTileK * kTileQ];               // scores of a block, then P in words
  alignas(64) float q[mla::kMostDims * kTileQ];       // Q^T in words
  alignas(64) float o[mla::kMostDims * kTileQ];       // O^T
  alignas(64) float k[kTileK * mla::kMostDims];       // rows of a block; of a tile's q and out before and after it
  alignas(64) float v[kTileK * mla::kMostDims];       // pairs of keys
  alignas(64) float hidden[mla::kMostDims * kLanes];  // O of a vector some of whose lanes do not see a block
};

// The 512 of a row of fp8, each times its factor and rounded to bf16, and its 64 of bf16.
inline void decode_row(bf16* to, const char* from) {
  float factor[kLatent / kLatentGroup];
  __builtin_memcpy(factor, from + kLatent, sizeof factor);
  const fp8* const latent = (const fp8*)from;
  for (int group = 0; group < kLatent / kLatentGroup; ++group) {
    const vf by = broadcast(factor[group]);
    for (int d = group * kLatentGroup; d < (group + 1) * kLatentGroup; d += 2 * kLanes) {
#if TILEKILN_PAIRS && defined(__AVX512BW__)
      vf even, odd;  // of bf16, which has every e4m3
      even_odd(load_halves(latent + d).v, even, odd);
      narrow_even_odd(to + d, mul(even, by), mul(odd, by));
#else
      narrow(to + d, mul(widen(latent + d), by));
      narrow(to + d + kLanes, mul(widen(latent + d + kLanes), by));
#endif
    }
  }
  __builtin_memcpy(to + kLatent, from + kLatent + sizeof factor, sizeof(bf16) * (mla::kMostDims - kLatent));
}

inline void load_fp8_rows_fp32(void* to, const void* from, i64 stride, int rows, int hdim) {
  bf16 row[mla::kMostDims];
  for (int i = 0; i < rows; ++i) {
    decode_row(row, (const char*)from + i * stride);
    load_rows_fp32<bf16, false>((float*)to + i * k_copy_stride(hdim), row, 0, 1, hdim);
  }
}

#if TILEKILN_PAIRS
inline void load_fp8_rows_pairs(void* to, const void* from, i64 stride, int rows, int hdim) {
  const int width = 2 * k_copy_stride((hdim + 1) / 2);
  for (int i = 0; i < rows; ++i) decode_row((bf16*)to + i * width, (const char*)from + i * stride);
}

// Words of the stride between pairs of keys: an odd number of lines, as the columns of a block are read down through them.
constexpr int pair_stride(int hdim) { return v_copy_stride(hdim) + 16; }

// Words (K[2i][d], K[2i + 1][d]) of the first hdim elements of rows `stride` bytes apart; a missing last key is 0.
inline void pair_rows(float* to, const char* rows, i64 stride, int keys, int hdim) {
  for (int i = 0; i < keys; i += 2) {
    const bf16 *const p = (const bf16*)(rows + i * stride), *const next = (const bf16*)(rows + (i + 1) * stride);
    bf16* const word = (bf16*)(to + i64(i / 2) * pair_stride(hdim));
    for (int d = 0; d < hdim; d += 2 * kLanes)
      interleave(word + 2 * d, load_halves(p + d, hdim - d),
                 i + 1 < keys ? load_halves(next + d, hdim - d) : zero_halves());
  }
}
#endif

// Functions and sizes that depend on the storage type.
struct LatentStorage {
  LoadQ load_q;
  LoadRows load_rows;
  StoreOut store_out;
  StoreRow store_row;
  int q_bytes, cache_bytes;  // of an element; of fp8 rows, which are counted in bytes, 1
  bool direct;               // rows of the cache are rows of words as they lie
};

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
