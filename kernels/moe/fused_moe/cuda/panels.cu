// SPDX-License-Identifier: MIT
// A mixture of experts of quantised panels on Hopper: as experts.cu, by the products of flatmm_quant/cuda/panels.h.
// Rows become int8 before each product, a factor each, where the build is of those.
//
// -D: WEIGHTS, a matrix::Weights; TILEKILN_FP16 for fp16; TILEKILN_INT8: rows become int8.
#include "kernels/gemm/flatmm_quant/cuda/narrow.h"
#include "kernels/gemm/flatmm_quant/cuda/panels.h"
#include "kernels/moe/fused_moe/cuda/steps.h"

using namespace tilekiln::cuda;

extern "C" __constant__ gemm::Build gemm_build = {panels::kTileRows,
                                                  2 * panels::kLanes,
                                                  panels::kDepth,
                                                  panels::kPanelThreads,
                                                  panels::panel_shared(1),
                                                  0,
                                                  0,
                                                  panels::kFp16,
                                                  panels::kNarrow ? int(tilekiln::matrix::Dtype::int8) : 0,
                                                  1,
                                                  0,
                                                  1 + WEIGHTS};
PANELS(panels_gated_16, 0, true, true)
PANELS(panels_gated_64, 1, true, true)
PANELS(panels_gated_128, 2, true, true)
PANELS(panels_rows_16, 0, false, true)
PANELS(panels_rows_64, 1, false, true)
PANELS(panels_rows_128, 2, false, true)
PANELS(panels_gated_16_whole, 0, true, false)
PANELS(panels_gated_64_whole, 1, true, false)
PANELS(panels_gated_128_whole, 2, true, false)
PANELS(panels_rows_16_whole, 0, false, false)
PANELS(panels_rows_64_whole, 1, false, false)
PANELS(panels_rows_128_whole, 2, false, false)
