// SPDX-License-Identifier: MIT
// Convolutions as products on the engine of gemm for one target.
#include "kernels/gemm/cpu/scratch.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
struct Products {
  using Scratch = GemmScratch;
  static constexpr bool kTiles = false;
  template <class T> static constexpr PackPanel kPackRows = nullptr;
};
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

#define TILEKILN_PIPELINE _panels
#include "kernels/conv/cpu/products.h"
