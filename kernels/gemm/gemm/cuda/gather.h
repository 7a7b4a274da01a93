// An operand that TMA cannot follow (odd strides, odd addresses): stored to its tile element by element.
#pragma once

#include "kernels/backends/cuda/tile/shared_tile.h"
#include "kernels/gemm/gemm/cuda/params.h"

namespace tilekiln::cuda::gemm {

// By 128 threads: the tile from `line` and `step` on, of `lines` and `steps` that there are; zeros beyond them, as TMA
// has them.
template <class Tile>
TILEKILN_DEVICE void gather(Tile& tile, const Gathered& from, int lines, int steps, int line, int step, int batch,
                            int thread) {
  const uint16_t* const data = from.data + batch * from.batch;
#pragma unroll 1
  for (int piece = thread; piece < Tile::kLines * 8; piece += 128) {
    const int row = piece / 8, chunk = piece % 8;
    uint32_t words[4];
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      const int l = line + (Tile::kTransposed ? row / 64 * 64 + chunk * 8 + e : row);
      const int s = step + (Tile::kTransposed ? row % 64 : chunk * 8 + e);
      const uint32_t bits = load_if(l < lines && s < steps, data + l * from.line + s * from.step);
      words[e / 2] = e % 2 == 0 ? bits : words[e / 2] | bits << 16;
    }
    tile.store(row, chunk, words);
  }
}

}  // namespace tilekiln::cuda::gemm
