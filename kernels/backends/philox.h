// SPDX-License-Identifier: MIT
// Dropout's random bytes, scalar form: Philox-4x32 with 7 rounds and the map from (row, key) to a byte.
//
// Key = seed. A 32 x 32 patch (row32, key32) has 64 lanes; lane = 32 half + key % 32 with half = row / 8 % 2 draws the counter
//   (offset' low, offset' high, row32, key32),  offset' = offset + (batch nhead_q + head) 64 + lane,
// and its 16 bytes are the rows 16 g + 8 half + 0..7 of the patch, g = 0, 1. The byte depends on neither mask nor tile.
#pragma once

#include <cstdint>

#include "kernels/backends/target.h"

namespace tilekiln::core::inline TILEKILN_TARGET {

constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u, kPhiloxMultiplier1 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u, kPhiloxWeyl1 = 0xBB67AE85u;
constexpr int kPhiloxRounds = 7;

struct Philox { uint32_t word[4]; };

inline Philox philox(uint64_t seed, uint64_t offset, uint32_t row32, uint32_t key32) {
  uint32_t c0 = uint32_t(offset), c1 = uint32_t(offset >> 32), c2 = row32, c3 = key32;
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t x = uint64_t(c0) * kPhiloxMultiplier0, y = uint64_t(c2) * kPhiloxMultiplier1;
    c0 = uint32_t(y >> 32) ^ c1 ^ k0;
    c1 = uint32_t(y);
    c2 = uint32_t(x >> 32) ^ c3 ^ k1;
    c3 = uint32_t(x);
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

// `offset` is already that of the head: offset + (batch nhead_q + head) 64.
inline uint8_t dropout_byte(uint64_t seed, uint64_t offset, int row, int key) {
  const int half = row / 8 % 2, byte = row / 16 % 2 * 8 + row % 8;
  const Philox r = philox(seed, offset + uint64_t(32 * half + key % 32), uint32_t(row / 32), uint32_t(key / 32));
  return uint8_t(r.word[byte / 4] >> byte % 4 * 8);
}

// A probability is kept iff its byte <= floor((1 - p) 255). The product is rounded to float32 before the floor; in double
// p = 0.2f would give 203, not 204. Everyone who needs the threshold (engine, reference, tests) uses this definition.
inline uint8_t dropout_threshold(float dropout_p) {
  const float keep = 1.f - dropout_p;
  return uint8_t(keep * 255.f);
}

}  // namespace tilekiln::core::inline TILEKILN_TARGET
