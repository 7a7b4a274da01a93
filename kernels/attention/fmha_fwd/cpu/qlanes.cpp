// SPDX-License-Identifier: MIT
// The qlanes engine of fmha_fwd for one target: compiled once with the target's flags and -DTILEKILN_TARGET=<its name>, every
// instance of that target is a row over it. The engine is the only symbol that leaves this unit.
#include "kernels/attention/fmha_fwd/cpu/tile.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _fmha_fwd_qlanes)

// Functions in the order of Dtype: fp32, fp16, bf16, fp8bf16, fp8fp32, and none of FNUZ. An fp32 result of fp8 is computed in fp32:
// rounding P to bf16 would be its largest error; under a bf16 result it does not show.
extern "C" const tilekiln::fmha::FwdEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::fp32_tile<float, float>, tilekiln::cpu::fp32_tile<tilekiln::cpu::fp16, tilekiln::cpu::fp16>,
     tilekiln::cpu::bf16_bf16_tile<>, tilekiln::cpu::fp8_bf16_tile<>,
     tilekiln::cpu::fp32_tile<tilekiln::cpu::fp8, float>},
    sizeof(tilekiln::cpu::Scratch),
    tilekiln::cpu::kTileQ,
    tilekiln::cpu::kTileK};
