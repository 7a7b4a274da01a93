// SPDX-License-Identifier: MIT
// Products of rows with a quantised weight in panels on Hopper (panels.h); rows of 16 bits become int8 before, where
// the call asks for it.
//
// -D: WEIGHTS, a matrix::Weights or kOfRows; TILEKILN_FP16 for fp16; TILEKILN_INT8: rows are int8.
#include "kernels/gemm/flatmm_quant/cuda/narrow.h"
#include "kernels/gemm/flatmm_quant/cuda/panels.h"
#include "kernels/gemm/flatmm_quant/cuda/params.h"

extern "C" __constant__ tilekiln::cuda::words::Build words_build = {tilekiln::cuda::panels::kFp16, 1 + WEIGHTS,
                                                                    tilekiln::cuda::panels::kNarrow};
PANELS(panels_16, 0, false, true, true)
PANELS(panels_64, 1, false, true, true)
PANELS(panels_128, 2, false, true)
PANELS(panels_16_whole, 0, false, false, true)
PANELS(panels_64_whole, 1, false, false, true)
PANELS(panels_128_whole, 2, false, false)
