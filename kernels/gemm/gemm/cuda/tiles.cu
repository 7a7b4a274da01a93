// SPDX-License-Identifier: MIT
// Kernels of tiles that a caller names, a tile each (kernel.h), of products whose epilogue is alpha alone.
//
// -D: those of kernel.h; a and b are of 16 bits.
#include "kernels/gemm/gemm/cuda/tiles.h"

#include "kernels/gemm/gemm/cuda/kernel.h"

namespace tilekiln::cuda::gemm {

struct OfTiles {
  static constexpr bool kPlain = true;
  static constexpr Form form(int number) { return kTiles[number]; }
  static constexpr int loader(const Form& form) { return loader_registers(form); }
  static constexpr int consumer(const Form& form) { return consumer_registers(form); }
  static constexpr bool shares(const Form& form) { return shares_steps(form); }
};

}  // namespace tilekiln::cuda::gemm

using tilekiln::cuda::gemm::OfTiles;

#define TILE(name, number)                                                                    \
  static_assert(sizeof(tilekiln::cuda::gemm::Kernel<OfTiles, number>::Shared) ==              \
                    tile_shared_bytes(OfTiles::form(number)),                                 \
                "the host launches a tile with as much shared memory as it has");             \
  GEMM(OfTiles, name, number)

GEMM_BUILD(OfTiles, 128 * 5, 232448)  // of the largest
TILE(gemm_64x64, 0)
TILE(gemm_64x128, 1)
TILE(gemm_64x192, 2)
TILE(gemm_64x256, 3)
TILE(gemm_192x64, 4)
TILE(gemm_192x128, 5)
TILE(gemm_192x192, 6)
TILE(gemm_256x64, 7)
TILE(gemm_256x128, 8)
TILE(gemm_64x64_deep, 9)
TILE(gemm_64x128_deep, 10)
TILE(gemm_128x128_deep, 11)
TILE(gemm_64x64_two, 12)
TILE(gemm_128x64_two, 13)
TILE(gemm_192x64_two, 14)
TILE(gemm_64x64_deep_two, 15)
TILE(gemm_64x64_most, 16)
TILE(gemm_64x128_most, 17)
TILE(gemm_64x192_most, 18)
TILE(gemm_64x64_deep_most, 19)
TILE(gemm_64x128_deep_most, 20)
TILE(gemm_64x64_turns, 21)
TILE(gemm_64x128_turns, 22)
TILE(gemm_64x192_turns, 23)
TILE(gemm_64x256_turns, 24)
TILE(gemm_64x128_deep_turns, 25)
