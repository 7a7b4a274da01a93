// SPDX-License-Identifier: MIT
// The tile of every CPU pipeline so far, and what one thread needs to compute one.
#pragma once

#include "kernels/backends/cpu/vocabulary.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using i64 = long long;
using u64 = unsigned long long;

constexpr int kTileQ = 64;  // queries a tile
constexpr int kTileK = 64;  // keys a block
constexpr int kMaxHdim = 512;
constexpr int kVectors = kTileQ / kLanes;  // lane = query
static_assert(kTileQ == 64 && kTileK == 64,
              "The keep bits of dropout and the Philox patches are laid out for 64 x 64.");

constexpr float kLog2e = 1.44269504088896f, kLn2 = 0.69314718055995f;
constexpr float kLowest =
    -3.40282347e+38f;  // where a running maximum starts: no finite score is below it, and no inf - inf
constexpr float kInfinity = __builtin_inff(), kNan = __builtin_nanf("");

constexpr int round_up(int x, int step) { return (x + step - 1) / step * step; }

constexpr int kPackedFloats = 1 << 21, kMostPacked = 512;  // 8 MB of packed blocks, and their most

// A key head and its blocks that are packed (qlanes/packed.h). The first word of scratch is 0 when a call begins in a thread
// (run_ranges), so that none of an earlier call is taken for one of this.
struct PackedHead {
  const char *k, *v;
  const int* table;
  i64 first_key;
  i64 k_blocks[kMostPacked], v_blocks[kMostPacked];
};

struct Scratch {
  PackedHead head;
  alignas(64) float s[kTileK * kTileQ];    // scores of a block, then P in words: word w overwrites key w
  alignas(64) float q[kMaxHdim * kTileQ];  // Q^T in words
  alignas(64) float o[kMaxHdim * kTileQ];  // O^T
  alignas(64) float k[kTileK * kMaxHdim];  // K and V of a block, where they must be converted or padded
  alignas(64) float v[kTileK * kMaxHdim];
  alignas(64) lane_bits keep[kVectors * kTileK];  // dropout: [vector][key]
  alignas(64) float packed[kPackedFloats];
};

// Calls f.operator()<N>(j) for the vectors [begin, end) in groups of at most kBlockVectors.
template <class F> TILEKILN_INLINE void vector_groups(int begin, int end, F&& f) {
  static_assert(kBlockVectors == 4 || kBlockVectors == 2, "Groups of vectors are spelled out for 4 and 2.");
  int j = begin;
  for (; j + kBlockVectors <= end; j += kBlockVectors) f.template operator()<kBlockVectors>(j);
  if constexpr (kBlockVectors == 4) {
    if (end - j >= 2) {
      f.template operator()<2>(j);
      j += 2;
    }
  }
  if (j < end) f.template operator()<1>(j);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
