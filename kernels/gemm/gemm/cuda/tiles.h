// SPDX-License-Identifier: MIT
// Tiles that a caller names, an instance each, of products without an epilogue; tiles.cu has their kernels.
// Those of 128 rows and stages of 64 along k are the forms of every product (params.h).
#pragma once

#include "kernels/gemm/gemm/cuda/params.h"

namespace tilekiln::cuda::gemm {

// function, columns, stages, boxes, ctas, splits, apart, consumers, deep, together.
constexpr Form kTiles[] = {
    {"gemm_64x64", 64, 6, 1, 1, 1, 64, 1, 1, 2},         {"gemm_64x128", 128, 4, 1, 1, 1, 128, 1, 1, 2},
    {"gemm_64x192", 192, 3, 1, 1, 1, 192, 1, 1, 2},      {"gemm_64x256", 256, 5, 1, 1, 1, 256, 1, 1, 1},
    {"gemm_192x64", 64, 6, 1, 1, 1, 64, 3, 1, 1},        {"gemm_192x128", 128, 5, 1, 1, 1, 128, 3, 1, 1},
    {"gemm_192x192", 192, 4, 1, 1, 1, 192, 3, 1, 1},     {"gemm_256x64", 64, 4, 1, 1, 1, 64, 4, 1, 1},
    {"gemm_256x128", 128, 4, 1, 1, 1, 128, 4, 1, 1},     {"gemm_64x64_deep", 64, 3, 1, 1, 1, 64, 1, 2, 2},
    {"gemm_64x128_deep", 128, 2, 1, 1, 1, 128, 1, 2, 2}, {"gemm_128x128_deep", 128, 3, 1, 1, 1, 128, 2, 2, 1}};

// Registers of a thread, of the 65,536 that a processor has: setmaxnreg moves them from the loader to the consumers.
constexpr int loader_registers(const Form& form) { return form.consumers > 2 ? 32 : 40; }
constexpr int consumer_registers(const Form& form) {
  return form.consumers == 1   ? (form.together == 2 ? 216 : 232)
         : form.consumers == 2 ? 232
         : form.consumers == 3 ? 160
                               : 112;
}

// Shared memory of a CTA: stages, boxes of 2 KB a warp, and barriers behind both.
constexpr int tile_shared_bytes(const Form& form) {
  const int stage = (64 * form.consumers + form.columns) * 128 * form.deep;
  return stage * form.stages + 1024 + 4 * form.consumers * form.boxes * 2048 + 1024;
}

}  // namespace tilekiln::cuda::gemm
