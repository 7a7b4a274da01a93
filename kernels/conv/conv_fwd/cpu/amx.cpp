// SPDX-License-Identifier: MIT
// Convolutions as products on the engine of gemm by tiles of the processor (AMX).
#include "kernels/gemm/cpu/amx.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
struct Products {
  using Scratch = TileScratch;
  static constexpr bool kTiles = true;
  // A panel of rows of words as they lie.
  template <class T>
  static constexpr PackPanel kPackRows = sizeof(T) == 1 ? TileStages<int8>::rows : TileStages<bf16>::rows;
};
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_PIPELINE _amx
#include "kernels/conv/cpu/products.h"
