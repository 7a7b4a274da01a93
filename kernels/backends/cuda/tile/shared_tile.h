// SPDX-License-Identifier: MIT
// Operand tiles in shared memory: one type knows a tile's bytes, its 128-byte swizzle, its TMA boxes and its wgmma
// descriptor.
//
// Invariants: a tile begins at a multiple of 1,024 bytes and consists of whole panels, whose rows have 128 bytes.
// Major::K: panels of kLines rows, 128 bytes along k each. Major::MN: panels of kDepth rows (one a step along k), 128
// bytes of lines each. Chunk c (16 bytes) of row r lies at chunk c ^ (r % 8), whoever wrote it: TMA or `store`. A line
// is a row of A or a column of B. What the last panel has beyond the tile's width is loaded and not multiplied.
#pragma once

#include "kernels/backends/cuda/ptx.h"
#include "kernels/backends/cuda/tile/element.h"
#include "kernels/backends/cuda/tile/places.h"

namespace tilekiln::cuda {

enum class Major { K, MN };  // the contiguous direction of an operand

// The struct that lies over the dynamic shared memory of a launch.
template <class Shared> TILEKILN_DEVICE Shared& shared_memory() {
  extern __shared__ __align__(1024) char raw[];
  return *reinterpret_cast<Shared*>(raw);
}

// A tile's place along the outer dimensions of its array.
struct Outer { int c2, c3, c4; };

// An operand of wgmma: the descriptor of its first atom; Tile says how to reach the others.
template <class Tile> struct Operand {
  uint64_t descriptor;

  // An atom along k, of 32 bytes of a line; lines of a panel hold four.
  __device__ __forceinline__ uint64_t atom(int i) const {
    return descriptor + i % 4 * Tile::kStep + i / 4 * Tile::kPanelStep;
  }
  // Operand kept in registers, alike in all lanes: one that a loop takes again and again would be made of
  // constants each time.
  __device__ __forceinline__ Operand kept() const {
    return {(descriptor & ~0xffffffffull) | uint32_t(uniform(int(descriptor)))};
  }
  // Operand so many lines behind this one, as Tile::from has them.
  __device__ __forceinline__ Operand behind(int lines) const {
    return {(descriptor & ~0xffffffffull) | uint32_t(int(descriptor) + lines * (Tile::kLineBytes / 16))};
  }
};

template <class Element_, int kLines_, int kDepth_, Major kMajor> struct alignas(1024) SharedTile {
  using Element = Element_;
  static constexpr int kLines = kLines_, kDepth = kDepth_;
  static constexpr bool kTransposed = kMajor == Major::MN;
  static constexpr int kRows = kTransposed ? kDepth : kLines, kRowElements = 128 / Element::kBytes;
  static constexpr int kPanels = ((kTransposed ? kLines : kDepth) + kRowElements - 1) / kRowElements;
  static constexpr int kPanelBytes = kRows * 128, kBytes = kPanels * kPanelBytes;
  // Distances of descriptors, in 16 bytes: from an atom along k to the next, and from four of them to the next four.
  static constexpr int kStep = (kTransposed ? Element::kAtom * 128 : 32) / 16;
  static constexpr int kPanelStep = kTransposed ? 4 * kStep : kPanelBytes / 16;
  static constexpr int kLineBytes = kTransposed ? kPanelBytes / kRowElements : 128;  // from one operand's line on
  static_assert(kLines % 8 == 0, "the swizzle of a tile repeats every 8 lines, so kLines must be a multiple of 8");

  uint8_t data[kBytes];

  __device__ __forceinline__ uint32_t address() const { return shared_address(data); }

  // The address of a 16-byte chunk.
  __device__ __forceinline__ uint32_t at(int panel, int row, int chunk) const {
    return address() + panel * kPanelBytes + swizzle128(row, chunk);
  }

  // The operand from a line on: a multiple of 8 (Major::K) or 64 (Major::MN).
  __device__ __forceinline__ Operand<SharedTile> from(int line) const {
    return {tile_descriptor(address() + line * kLineBytes, kTransposed ? kPanelBytes : 16, 1024)};
  }

  // Operand of the same bytes whose depth this one's lines are: of a product over rows, where another has columns.
  using Turned = SharedTile<Element, kDepth, kLines, kTransposed ? Major::K : Major::MN>;
  __device__ __forceinline__ const Turned& turned() const { return reinterpret_cast<const Turned&>(*this); }

  // Asks TMA for `count` lines from `line` of the array on, and kDepth steps from `k` on; what lies out of the array is
  // 0. They become lines [first, first + count) of this tile. kMulticast: of the tile of every CTA of the cluster whose
  // bit is set in `ctas`.
  template <bool kMulticast = false>
  __device__ __forceinline__ void load(const TensorMap& map, uint64_t& full, int line, int k, int batch, int count,
                                       int first = 0, uint16_t ctas = 1) const {
    const auto copy = [&](uint32_t to, int c0, int c1) {
      if constexpr (kMulticast)
        tensor_load_to_all(to, map, full, c0, c1, batch, 0, 0, ctas);
      else
        tensor_load(to, map, full, c0, c1, batch, 0, 0);
    };
    if constexpr (kTransposed) {
      const uint32_t to = address() + first * kLineBytes;
#pragma unroll 4
      for (int i = 0; i < count / kRowElements; ++i) copy(to + i * kPanelBytes, line + kRowElements * i, k);
    } else {
#pragma unroll
      for (int i = 0; i < kDepth / kRowElements; ++i)
        copy(address() + first * 128 + i * kPanelBytes, k + kRowElements * i, line);
    }
  }

  // Copies a box of kRows rows or fewer, from `row` of the array on: to rows from `to` on of all panels, however
  // the operand is contiguous.
  __device__ __forceinline__ void load_rows(const TensorMap& map, uint64_t& full, int row, const Outer& outer,
                                            int to = 0) const {
#pragma unroll
    for (int i = 0; i < kPanels; ++i)
      tensor_load(address() + i * kPanelBytes + to * 128, map, full, kRowElements * i, row, outer.c2, outer.c3,
                  outer.c4);
  }

  // Copies the tile by the `ctas` CTAs of a cluster (1 or 2), each its half of it to all of them.
  __device__ __forceinline__ void load_multicast(const TensorMap& map, uint64_t& full, int line, int k, int batch,
                                                 int rank, int ctas) const {
    constexpr int kHalf = kLines / 2;
#pragma unroll 1
    for (int half = rank; half < 2; half += ctas)
      load<true>(map, full, line + half * kHalf, k, batch, kHalf, half * kHalf, uint16_t(2 * ctas - 1));
  }

  // Stores a 16 x 16 block of a warp, a piece of a fragment of 16-bit elements: the i-th of those of rows from `row`
  // on, which have one `place`, place_of_block's. The producer's commit_stores follows.
  __device__ __forceinline__ uint32_t place_of_block(int row, int lane) const {
    return at(0, row + (lane & 15), lane >> 4);
  }
  static __device__ __forceinline__ void store_block(uint32_t place, int i, const uint32_t (&word)[4]) {
    store_matrices((place ^ i % 4 << 5) + i / 4 * kPanelBytes, word);
  }

  // Stores a 16-byte chunk where TMA would have put it. The producer's commit_stores follows.
  __device__ __forceinline__ void store(int row, int chunk, const uint32_t (&words)[4]) const {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address() + swizzle128(row, chunk)), "r"(words[0]),
                 "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  }
};

}  // namespace tilekiln::cuda
