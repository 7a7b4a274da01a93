// SPDX-License-Identifier: MIT
// Dropout's random bytes of one 64 x 64 block (the mapping: core/philox.h), as keep bits or as the bytes themselves.
#pragma once

#include "kernels/attention/cpu/tile.h"
#include "kernels/backends/philox.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

// The 16 bytes of kCounters lanes: bytes[g] holds the rows 16 g + 8 half + 0..7 of a patch, g = 0, 1.
struct RandomBytes { vu group[2]; };

TILEKILN_INLINE RandomBytes random_bytes(u64 seed, u64 first_lane, uint32_t row32, uint32_t key32) {
  const vu lane = counters_from(first_lane);
  vu c0 = lane, c1 = high32(lane), c2 = counters(row32), c3 = counters(key32);
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
  for (int round = 0; round < core::kPhiloxRounds; ++round) {
    // The upper halves of c1 and c3 are leftovers: multiply_low reads the lower ones only.
    const vu x = multiply_low(c0, core::kPhiloxMultiplier0), y = multiply_low(c2, core::kPhiloxMultiplier1);
    c0 = xor3(high32(y), c1, counters(k0));
    c1 = y;
    c2 = xor3(high32(x), c3, counters(k1));
    c3 = x;
    k0 += core::kPhiloxWeyl0;
    k1 += core::kPhiloxWeyl1;
  }
  return {{join_words(c0, c1), join_words(c2, c3)}};
}

// kCounters keys from the lane on, in the column, by the 32 queries of the vectors `group` and the next.
TILEKILN_INLINE void keep_patch(lane_bits* keep, int group, int column, u64 seed, u64 lane, uint32_t row32,
                                uint32_t key32, uint8_t threshold) {
  const RandomBytes low = random_bytes(seed, lane, row32, key32), high = random_bytes(seed, lane + 32, row32, key32);
  for (int g = 0; g < 2; ++g)
    store_keep(keep, group + g, column, bytes_at_most(low.group[g], threshold),
               bytes_at_most(high.group[g], threshold));
}

// offset: of this head. row, key: of the block, multiples of 32.
inline void keep_block(lane_bits* keep, u64 seed, u64 offset, int row, int key, uint8_t threshold) {
  for (int column = 0; column < kTileK; column += kCounters) {
    for (int patch = 0; patch < kTileQ / 32; ++patch)
      keep_patch(keep, 2 * patch, column, seed, offset + column % 32, uint32_t(row / 32 + patch),
                 uint32_t((key + column) / 32), threshold);
  }
}

// randval[row][key] for the rows and keys that exist.
inline void store_randval(unsigned char* randval, i64 stride, u64 seed, u64 offset, int row, int key, int rows,
                          int keys) {
  for (int column = 0; column < keys; column += kCounters) {
    for (int patch = 0; patch < rows; patch += 32) {
      for (int half = 0; half < 2; ++half) {
        const uint32_t row32 = uint32_t((row + patch) / 32), key32 = uint32_t((key + column) / 32);
        const RandomBytes random = random_bytes(seed, offset + 32 * half + column % 32, row32, key32);
        for (int g = 0; g < 2; ++g) {
          uint64_t bytes[kCounters];
          store_bytes(bytes, random.group[g]);
          for (int i = 0; i < 8; ++i) {
            const int r = patch + 16 * g + 8 * half + i;
            for (int lane = 0; lane < kCounters && r < rows && column + lane < keys; ++lane)
              randval[r * stride + column + lane] = uint8_t(bytes[lane] >> 8 * i);
          }
        }
      }
    }
  }
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
