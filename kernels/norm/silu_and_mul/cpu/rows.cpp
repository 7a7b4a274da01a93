// SPDX-License-Identifier: MIT
// The rows engine of silu_and_mul for one target.
#include "kernels/norm/cpu/gated.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _silu_and_mul_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::GatedEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::gated_rows<tilekiln::cpu::Silu, float>,
     tilekiln::cpu::gated_rows<tilekiln::cpu::Silu, tilekiln::cpu::fp16>,
     tilekiln::cpu::gated_rows<tilekiln::cpu::Silu, tilekiln::cpu::bf16>}};
