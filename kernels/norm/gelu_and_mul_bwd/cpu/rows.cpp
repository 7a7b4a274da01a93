// SPDX-License-Identifier: MIT
// The rows engine of gelu_and_mul_bwd for one target.
#include "kernels/norm/cpu/gated.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _gelu_and_mul_bwd_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::GatedEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::gelu_gated_gradients<float>, tilekiln::cpu::gelu_gated_gradients<tilekiln::cpu::fp16>,
     tilekiln::cpu::gelu_gated_gradients<tilekiln::cpu::bf16>}};
