// SPDX-License-Identifier: MIT
// Tiles that a caller names, an instance each, of products without an epilogue; tiles.cu has their kernels.
// Those of 128 rows and stages of 64 along k are the forms of every product (params.h).
#pragma once
#include <algorithm>

#include "kernels/gemm/gemm/cuda/params.h"

namespace tilekiln::cuda::gemm {

// function, columns, stages, boxes, ctas, splits, apart, consumers, deep, together, buffers, turns.
constexpr Buffers kRing = Buffers::ring, kTwo = Buffers::two, kMost = Buffers::most;
constexpr Form kTiles[] = {{"gemm_64x64", 64, 6, 1, 1, 1, 64, 1, 1, 2},
                           {"gemm_64x128", 128, 4, 1, 1, 1, 128, 1, 1, 2},
                           {"gemm_64x192", 192, 3, 1, 1, 1, 192, 1, 1, 2},
                           {"gemm_64x256", 256, 5, 1, 1, 1, 256, 1, 1, 1},
                           {"gemm_192x64", 64, 6, 1, 1, 1, 64, 3, 1, 1},
                           {"gemm_192x128", 128, 5, 1, 1, 1, 128, 3, 1, 1},
                           {"gemm_192x192", 192, 4, 1, 1, 1, 192, 3, 1, 1},
                           {"gemm_256x64", 64, 4, 1, 1, 1, 64, 4, 1, 1},
                           {"gemm_256x128", 128, 4, 1, 1, 1, 128, 4, 1, 1},
                           {"gemm_64x64_deep", 64, 3, 1, 1, 1, 64, 1, 2, 2},
                           {"gemm_64x128_deep", 128, 2, 1, 1, 1, 128, 1, 2, 2},
                           {"gemm_128x128_deep", 128, 3, 1, 1, 1, 128, 2, 2, 1},
                           {"gemm_64x64_two", 64, 2, 1, 1, 1, 64, 1, 1, 4, kTwo},
                           {"gemm_128x64_two", 64, 2, 1, 1, 1, 64, 2, 1, 2, kTwo},
                           {"gemm_192x64_two", 64, 2, 1, 1, 1, 64, 3, 1, 2, kTwo},
                           {"gemm_64x64_deep_two", 64, 2, 1, 1, 1, 64, 1, 2, 3, kTwo},
                           {"gemm_64x64_most", 64, 12, 1, 1, 1, 64, 1, 1, 1, kMost},
                           {"gemm_64x128_most", 128, 8, 1, 1, 1, 128, 1, 1, 1, kMost},
                           {"gemm_64x192_most", 192, 6, 1, 1, 1, 192, 1, 1, 1, kMost},
                           {"gemm_64x64_deep_most", 64, 6, 1, 1, 1, 64, 1, 2, 1, kMost},
                           {"gemm_64x128_deep_most", 128, 4, 1, 1, 1, 128, 1, 2, 1, kMost},
                           {"gemm_64x64_turns", 64, 5, 1, 1, 1, 64, 2, 1, 2, kRing, true},
                           {"gemm_64x128_turns", 128, 8, 1, 1, 1, 128, 2, 1, 1, kRing, true},
                           {"gemm_64x192_turns", 192, 6, 1, 1, 1, 192, 2, 1, 1, kRing, true},
                           {"gemm_64x256_turns", 256, 5, 1, 1, 1, 256, 2, 1, 1, kRing, true},
                           {"gemm_64x128_deep_turns", 128, 4, 1, 1, 1, 128, 2, 2, 1, kRing, true}};

// Registers of a thread, of the 65,536 that a processor has: setmaxnreg moves them from the loader to the consumers.
constexpr int launch_registers(const Form& form) {
  return std::min(65536 / (128 * (1 + form.consumers) * form.together) / 8 * 8, 168);
}
constexpr int loader_registers(const Form& form) {
  return form.consumers > 2 ? 32 : launch_registers(form) < 128 ? 24 : 40;
}
constexpr int consumer_registers(const Form& form) {
  const int room = launch_registers(form) * (1 + form.consumers) - loader_registers(form);
  return std::min(room / form.consumers / 8 * 8, 232);
}

// Tells whether CTAs may share a tile's steps: it is of all warpgroups, and registers hold a part beside the sums.
constexpr bool shares_steps(const Form& form) {
  return !form.turns && consumer_registers(form) >= form.columns / 2 + 56;
}

// Shared memory of a CTA: stages, boxes of 2 KB a warp, and barriers behind both.
constexpr int tile_shared_bytes(const Form& form) {
  const int stage = (form.rows() + form.columns) * 128 * form.deep;
  return stage * form.stages + 1024 + 4 * form.consumers * form.boxes * 2048 + 1024;
}

}  // namespace tilekiln::cuda::gemm
