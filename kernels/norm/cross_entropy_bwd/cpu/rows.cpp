// SPDX-License-Identifier: MIT
// The rows engine of cross_entropy_bwd for one target.
#include "kernels/norm/cpu/cross_entropy.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _cross_entropy_bwd_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::CrossEntropyEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::cross_entropy_gradients<float>, tilekiln::cpu::cross_entropy_gradients<tilekiln::cpu::fp16>,
     tilekiln::cpu::cross_entropy_gradients<tilekiln::cpu::bf16>}};
