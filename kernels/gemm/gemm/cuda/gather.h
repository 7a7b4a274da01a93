// SPDX-License-Identifier: MIT
// An operand that TMA cannot follow (odd strides, odd addresses): stored to its tile element by element.
#pragma once

#include <type_traits>

#include "kernels/backends/cuda/tile/shared_tile.h"
#include "kernels/gemm/gemm/cuda/params.h"

namespace tilekiln::cuda::gemm {

// Gathers by 128 threads the tile from `line` and `step` on, of `lines` and `steps` that there are; zeros beyond them,
// as TMA has them.
template <class Tile>
TILEKILN_DEVICE void gather(Tile& tile, const Gathered& from, int lines, int steps, int line, int step, int batch,
                            int thread) {
  using Bits = std::conditional_t<Tile::Element::kBytes == 1, uint8_t, uint16_t>;
  constexpr int kRow = Tile::kRowElements, kEach = 16 / sizeof(Bits), kInWord = 4 / sizeof(Bits);
  const Bits* const data = reinterpret_cast<const Bits*>(from.data) + batch * from.batch;
#pragma unroll 1
  for (int piece = thread; piece < Tile::kBytes / 16; piece += 128) {
    const int row = piece / 8, chunk = piece % 8;
    uint32_t words[4] = {};
#pragma unroll
    for (int e = 0; e < kEach; ++e) {
      const int l = line + (Tile::kTransposed ? row / kRow * kRow + chunk * kEach + e : row);
      const int s = step + (Tile::kTransposed ? row % kRow : chunk * kEach + e);
      const uint32_t bits = load_if(l < lines && s < steps, data + l * from.line + s * from.step);
      words[e / kInWord] |= bits << e % kInWord * 8 * sizeof(Bits);
    }
    tile.store(row, chunk, words);
  }
}

}  // namespace tilekiln::cuda::gemm
