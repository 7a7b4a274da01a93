// SPDX-License-Identifier: MIT
// The rows engine of layernorm2d for one target.
#include "kernels/norm/cpu/rows.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _layernorm2d_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::normalise<float, tilekiln::cpu::Norm::layer>,
     tilekiln::cpu::normalise<tilekiln::cpu::fp16, tilekiln::cpu::Norm::layer>,
     tilekiln::cpu::normalise<tilekiln::cpu::bf16, tilekiln::cpu::Norm::layer>}};
