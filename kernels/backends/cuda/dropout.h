// SPDX-License-Identifier: MIT
// Dropout's random bytes (the stream: kernels/backends/philox.h) as bits in the layout of wgmma accumulators.
//
// One call of Philox serves one key and 16 query rows of a 32 x 32 patch: rows 16 g + 8 half + 0..7, g = 0, 1.
#pragma once

#include "kernels/backends/cuda/ptx.h"
#include "kernels/backends/philox.h"

namespace tilekiln::cuda {

// A call's dropout: a probability is dropped iff its byte > threshold, that is, iff byte + (255 - threshold) has a
// carry.
struct Dropout {
  uint64_t seed, offset;
  uint32_t over;  // 255 - threshold in both halves of the word
};

struct RandomWords { uint32_t word[4]; };

// The halves of a product by name: taken from a product of 64 bits by shifts, ptxas adds zero to every upper one.
struct Wide { uint32_t low, high; };

TILEKILN_DEVICE Wide multiply(uint32_t a, uint32_t b) {
  Wide product;
  asm("{.reg .b64 p; mul.wide.u32 p, %2, %3; mov.b64 {%0, %1}, p;}"
      : "=r"(product.low), "=r"(product.high)
      : "r"(a), "r"(b));
  return product;
}

// core::philox, on the device. The key is the same for all calls of a kernel, so its rounds cost nothing.
TILEKILN_DEVICE RandomWords philox(uint64_t seed, uint64_t counter, uint32_t row32, uint32_t key32) {
  uint32_t c0 = uint32_t(counter), c1 = uint32_t(counter >> 32), c2 = row32, c3 = key32;
  uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
#pragma unroll
  for (int round = 0; round < core::kPhiloxRounds; ++round) {
    const Wide x = multiply(c0, core::kPhiloxMultiplier0), y = multiply(c2, core::kPhiloxMultiplier1);
    c0 = y.high ^ c1 ^ k0;
    c1 = y.low;
    c2 = x.high ^ c3 ^ k1;
    c3 = x.low;
    k0 += core::kPhiloxWeyl0;
    k1 += core::kPhiloxWeyl1;
  }
  return {{c0, c1, c2, c3}};
}

// Philox of keys one after the other under one counter and row32: what the first three rounds do to those is worked out
// once.
class PhiloxOfKeys {
 public:
  PhiloxOfKeys() = default;
  __device__ __forceinline__ PhiloxOfKeys(uint64_t seed, uint64_t counter, uint32_t row32)
      : k0_(uint32_t(seed)), k1_(uint32_t(seed >> 32)) {
    const Wide x = multiply(uint32_t(counter), core::kPhiloxMultiplier0), y = multiply(row32, core::kPhiloxMultiplier1);
    const Wide x2 = multiply(y.high ^ uint32_t(counter >> 32) ^ k0_, core::kPhiloxMultiplier0);
    const Wide y3 = multiply(x2.high ^ x.low ^ k1(1), core::kPhiloxMultiplier1);
    c2_of_2_ = x.high ^ k1_;
    c0_of_3_ = y.low ^ k0(1);
    c0_of_4_ = y3.high ^ k0(2);
    c1_of_4_ = y3.low;
    c2_of_4_ = x2.low ^ k1(2);
  }

  __device__ __forceinline__ RandomWords words(uint32_t key32) const {
    const Wide y2 = multiply(c2_of_2_ ^ key32, core::kPhiloxMultiplier1);
    const Wide x3 = multiply(y2.high ^ c0_of_3_, core::kPhiloxMultiplier0);
    uint32_t c0 = c0_of_4_ ^ y2.low, c1 = c1_of_4_, c2 = x3.high ^ c2_of_4_, c3 = x3.low;
#pragma unroll
    for (int round = 3; round < core::kPhiloxRounds; ++round) {
      const Wide x = multiply(c0, core::kPhiloxMultiplier0), y = multiply(c2, core::kPhiloxMultiplier1);
      c0 = y.high ^ c1 ^ k0(round);
      c1 = y.low;
      c2 = x.high ^ c3 ^ k1(round);
      c3 = x.low;
    }
    return {{c0, c1, c2, c3}};
  }

 private:
  __device__ __forceinline__ uint32_t k0(int round) const { return k0_ + uint32_t(round) * core::kPhiloxWeyl0; }
  __device__ __forceinline__ uint32_t k1(int round) const { return k1_ + uint32_t(round) * core::kPhiloxWeyl1; }

  uint32_t k0_, k1_, c2_of_2_, c0_of_3_, c0_of_4_, c1_of_4_,
      c2_of_4_;  // c2 of the second round but for the key, and so on
};

// prmt with the sign of a byte replicated where a selector has 8.
TILEKILN_DEVICE uint32_t permute(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t word;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(selector));
  return word;
}

// Compares two halves of a word, each ~0 where a number of fp16 is at most the other.
TILEKILN_DEVICE uint32_t at_most(uint32_t a, uint32_t b) {
  uint32_t mask;
  asm("set.le.u32.f16x2 %0, %1, %2;" : "=r"(mask) : "r"(a), "r"(b));
  return mask;
}

// Eight random bytes to eight bits, 1 = dropped: byte r to bit 8 (r % 4) + 4 (r / 4).
TILEKILN_DEVICE uint32_t dropped_bits(uint32_t low, uint32_t high, uint32_t over) {
  const uint32_t even_low = (low & 0x00ff00ffu) + over, odd_low = permute(low, 0, 0x4341) + over;
  const uint32_t even_high = (high & 0x00ff00ffu) + over, odd_high = permute(high, 0, 0x4341) + over;
  return permute(even_low, odd_low, 0x7351) +
         (permute(even_high, odd_high, 0x7351) << 4);  // the carries are bits 8 and 24
}

// Dropout for S = q k^T of a warp whose 16 rows are those of one half of a patch: 8 half + 0..7 and 16 + 8 half + 0..7.
// Lane (i, c) = (lane / 4, lane % 4) holds of both the i-th, and the keys 8 j + 2 c + {0, 1}. A lane draws the bytes of
// one key of 32, for all rows; they go through shared memory, 16 bytes a key, and come back transposed: a word holds of
// both rows the bytes of two keys. kRoom: keys that the warp has shared memory for. Of all kKeys, they stay there until
// they are asked for; else in registers.
template <int kKeys, int kRoom> struct DroppedHalf {
  static constexpr bool kStay = kRoom >= kKeys;
  static_assert(kKeys % 16 == 0 && (kStay ? kRoom % 32 == 0 : kRoom == 16 || kRoom == 32));
  uint32_t bytes[kStay ? 4 : (kKeys + 31) / 32 * 4];
  uint32_t from, limit;  // where they are; the largest byte that is kept, as `apply` compares

  // Source of tiles of keys one after the other, if 32 divides the keys of a tile; else of one tile alone.
  struct Source {
    PhiloxOfKeys keys;
    uint32_t room, lane, limit;
    Source() = default;
    // head: batch nhead_q + head. row: of the warp's patch, a multiple of 32. key: the first, a multiple of 16. room:
    // of the warp, 16 kRoom bytes.
    __device__ __forceinline__ Source(const Dropout& d, int head, int row, int half, int key, uint32_t to)
        : lane(uint32_t(fresh_lane())) {
      keys = PhiloxOfKeys(d.seed, d.offset + uint64_t(head) * 64 + uint64_t(32 * half) + (uint32_t(key) + lane) % 32,
                          uint32_t(row) / 32);
      room = to;
      limit = 0x00ff00ffu - d.over + (lane >> 5);  // + 0: ptxas would copy one that is uniform in front of each use
    }
  };

  __device__ __forceinline__ void none() {
    limit = 0x00ff00ffu;
#pragma unroll
    for (uint32_t& word : bytes) word = 0;
  }

  __device__ __forceinline__ void draw(const Source& source, int key) {
    const uint32_t room = source.room, lane = source.lane, at = kKeys % 32 == 0 ? uint32_t(key) : uint32_t(key) + lane;
    from = room + 16 * lane;
    limit = source.limit;
#pragma unroll
    for (int chunk = 0; 32 * chunk < kKeys; ++chunk) {
      const RandomWords r = source.keys.words(at / 32 + chunk);
      const uint32_t word[4] = {permute(r.word[0], r.word[2], 0x5140), permute(r.word[0], r.word[2], 0x7362),
                                permute(r.word[1], r.word[3], 0x5140), permute(r.word[1], r.word[3], 0x7362)};
      if constexpr (kStay) {
        store_four_words(true, from + 512 * chunk, word);
      } else {
        constexpr int kParts = kRoom == 32 ? 1 : 2;
#pragma unroll
        for (int part = 0; part < kParts && 32 * chunk + kRoom * part < kKeys; ++part) {
          store_four_words(kRoom == 32 || lane / 16 == part, kRoom == 32 ? from : room + lane % 16 * 16, word);
          __syncwarp();
          if constexpr (kRoom == 32) {
            uint32_t loaded[4];
            load_matrices_transposed(loaded, from);
#pragma unroll
            for (int j = 0; j < 4; ++j) bytes[4 * chunk + j] = loaded[j];
          } else {
            load_two_transposed(room + lane % 16 * 16, bytes[4 * chunk + 2 * part], bytes[4 * chunk + 2 * part + 1]);
          }
          __syncwarp();
        }
      }
    }
    if (kStay) __syncwarp();
  }

  // Fetches the 32 keys `chunk`, before `apply`.
  __device__ __forceinline__ void fetch(int chunk) {
    if constexpr (kStay) load_matrices_transposed(bytes, from + 512 * chunk);
  }

  // The packed pair of block j (keys e = 0, 1) and row: dropped ones become zero. Bytes compare as numbers of fp16
  // below the normal ones.
  __device__ __forceinline__ uint32_t apply(uint32_t pair, int j, int row) const {
    return pair & at_most(permute(bytes[kStay ? j % 4 : j], 0, row ? 0x4341 : 0x4240), limit);
  }
};

// Dropout for S = q k^T, 16 rows of a warp x 8 kBlocks keys from `key`. Lane (i, c) = (lane / 4, lane % 4) holds the
// rows i and i + 8 and the keys 8 j + 2 c + {0, 1}. It draws the keys of j = i, for all eight rows of either half, as
// eight nibbles; transposing the nibbles over the eight lanes i gives each lane its own rows of j = 0..7.
template <int kBlocks> struct DroppedRows {
  static constexpr int kWords = (kBlocks + 7) / 8;
  uint32_t word[kWords];  // j, key parity e, half: bit 8 (j % 4) + 4 (j / 4 % 2) + 2 e + half of word j / 8

  __device__ __forceinline__ void none() {
#pragma unroll
    for (int w = 0; w < kWords; ++w) word[w] = 0;
  }

  // Draws at most 64 keys: rows[g] are the 16 rows from row + 16 g on, of one warp. Two groups, with `row` a multiple
  // of 32, share what they draw; one throws half of it away.
  template <int kGroups>
  static __device__ __forceinline__ void draw_alone(const Dropout& d, int head, int row, int key,
                                                    DroppedRows (&rows)[kGroups]) {
    static_assert(kWords == 1 && (kGroups == 1 || kGroups == 2), "one patch of 32 rows, one word");
    const int lane = fresh_lane(), first = key + 8 * (lane >> 2) + 2 * (lane & 3);
    const bool upper = kGroups == 1 && (row & 16);
    const uint64_t offset = d.offset + uint64_t(head) * 64;
    uint32_t bits[kGroups] = {};
#pragma unroll
    for (int half = 1; half >= 0; --half) {
#pragma unroll
      for (int e = 1; e >= 0; --e) {
        const uint32_t at = uint32_t(first + e);
        const RandomWords r = philox(d.seed, offset + uint64_t(32 * half + at % 32), uint32_t(row) / 32, at / 32);
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          const uint32_t low = upper ? r.word[2] : r.word[2 * g], high = upper ? r.word[3] : r.word[2 * g + 1];
          bits[g] += dropped_bits(low, high, d.over) << (2 * e + half);
        }
      }
    }
#pragma unroll
    for (int g = 0; g < kGroups; ++g) rows[g].word[0] = transpose(bits[g], lane);
  }

  // Nibble r of lane i becomes nibble i of lane r.
  static __device__ __forceinline__ uint32_t transpose(uint32_t bits, int lane) {
    uint32_t other = __shfl_xor_sync(~0u, bits, 16);
    const uint32_t kept = lane & 16 ? 0xf0f0f0f0u : 0x0f0f0f0fu;
    bits = (bits & kept) | ((lane & 16 ? other >> 4 : other << 4) & ~kept);
    other = __shfl_xor_sync(~0u, bits, 8);
    bits = permute(bits, other, lane & 8 ? 0x3276 : 0x5410);
    other = __shfl_xor_sync(~0u, bits, 4);
    return permute(bits, other, lane & 4 ? 0x3715 : 0x6240);
  }

  // The packed pair of block j (keys e = 0, 1) and half: dropped ones become zero.
  __device__ __forceinline__ uint32_t apply(uint32_t pair, int j, int half) const {
    const int shift = 7 - 4 * (j / 4 % 2) - half, b = 8 | j % 4;
    const uint32_t first = word[j / 8] << shift, second = word[j / 8] << (shift - 2);
    return pair & ~permute(first, second, uint32_t(b | b << 4 | (b + 4) << 8 | (b + 4) << 12));
  }
};

// Dropout for S^T = k q^T, 16 keys of a warp x 8 kBlocks rows from `row`. Lane (i, c) holds the keys i and i + 8 (half
// = 0, 1) and the rows 8 j + 2 c + {0, 1}. The four lanes of a quad need the bytes of the same calls of Philox: each
// makes a quarter of them, for key i + 8 (c % 2), and hands the bits round.
template <int kBlocks> struct DroppedKeys {
  static constexpr int kWords = (kBlocks + 7) / 8;
  // Block j, half, row parity e: bit 16 (j / 4 % 2) + 8 e + 4 half + (j / 2 % 2) + 2 (j % 2) of word j / 8.
  uint32_t word[kWords];

  static __device__ constexpr int bit_of(int j, int half) { return 4 * half + j / 2 % 2 + 2 * (j % 2); }  // of a byte

  __device__ __forceinline__ void none() {
#pragma unroll
    for (int w = 0; w < kWords; ++w) word[w] = 0;
  }

  // head: batch nhead_q + head. row: a multiple of 32 in its sequence; of 16, where that is all. key: the warp's first,
  // a multiple of 16.
  __device__ __forceinline__ void draw(const Dropout& d, int head, int row, int key) {
    static_assert(kBlocks == 2 || kBlocks % 8 == 0, "half of a patch of 32 rows, or two patches a word");
    const int lane = fresh_lane(), i = lane >> 2, c = lane & 3;
    const uint32_t at = uint32_t(key + i + 8 * (c & 1));
    const uint64_t offset = d.offset + uint64_t(head) * 64 + uint64_t(at % 32);
    if constexpr (kBlocks ==
                  2) {  // a call each, for rows 8 (c / 2) + 0..7: half of it is the other 16 rows' of the patch
      const RandomWords r = philox(d.seed, offset + uint64_t(32 * (c >> 1)), uint32_t(row) / 32, at / 32);
      const bool upper = row & 16;
      const uint32_t bits = dropped_bits(upper ? r.word[2] : r.word[0], upper ? r.word[3] : r.word[1], d.over);
      word[0] = 0;
#pragma unroll
      for (int other = 0; other < 4; ++other) {
        const uint32_t theirs = __shfl_sync(~0u, bits, (lane & ~3) | other) >> (16 * (c & 1) + 4 * (c >> 1));
        word[0] |= (theirs & 0x0101u) << bit_of(other >> 1, other & 1);
      }
    } else {
#pragma unroll
      for (int w = 0; w < kWords; ++w) {
        const uint32_t patch = uint32_t(row) / 32 + 2 * w + (c >> 1);
        uint32_t bits = 0;
#pragma unroll
        for (int half = 1; half >= 0; --half) {  // rows 8 half + 0..7 and 16 + 8 half + 0..7 of the patch
          const RandomWords r = philox(d.seed, offset + uint64_t(32 * half), patch, at / 32);
          bits += (dropped_bits(r.word[0], r.word[1], d.over) + (dropped_bits(r.word[2], r.word[3], d.over) << 1))
                  << (2 * half);
        }
        word[w] = 0;
#pragma unroll
        // Rows 2 c and 2 c + 1 of its eight are at 16 (c % 2) + 4 (c / 2) and + 8.
        for (int other = 0; other < 4; ++other) {
          const uint32_t theirs = __shfl_sync(~0u, bits, (lane & ~3) | other) >> (16 * (c & 1) + 4 * (c >> 1));
          word[w] |= (theirs & 0x0f0fu) << (16 * (other >> 1) + 4 * (other & 1));
        }
      }
    }
  }

  // The packed pair of block j (rows e = 0, 1) and half: dropped ones become zero.
  __device__ __forceinline__ uint32_t apply(uint32_t pair, int j, int half) const {
    const uint32_t b = 8 | 2 * (j / 4 % 2);
    return pair & ~permute(word[j / 8] << (7 - bit_of(j, half)), 0, b | b << 4 | (b + 1) << 8 | (b + 1) << 12);
  }

  // x of block j, half, row parity e: zero if dropped, else times `keep_scale`.
  __device__ __forceinline__ void scale(float& x, int j, int half, int e, float keep_scale) const {
    x = word[j / 8] >> (16 * (j / 4 % 2) + 8 * e + bit_of(j, half)) & 1 ? 0.f : x * keep_scale;
  }
};

}  // namespace tilekiln::cuda
