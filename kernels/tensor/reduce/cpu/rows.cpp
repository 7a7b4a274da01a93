// SPDX-License-Identifier: MIT
// The engine of reduce for one target.
#include "kernels/tensor/reduce/cpu/reduce.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _reduce_rows)

// Functions by dtype: fp32, fp16, bf16.
extern "C" const tilekiln::tensor::ReduceEngine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::reduce<float>, tilekiln::cpu::reduce<tilekiln::cpu::fp16>,
     tilekiln::cpu::reduce<tilekiln::cpu::bf16>}};
