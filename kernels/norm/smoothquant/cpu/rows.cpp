// The rows engine of smoothquant for one target.
#include "kernels/norm/cpu/quantise.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _smoothquant_rows)

// By dtype: fp32, fp16, bf16.
extern "C" const tilekiln::norm::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {
    {tilekiln::cpu::quantise<float, tilekiln::cpu::Norm::none>,
     tilekiln::cpu::quantise<tilekiln::cpu::fp16, tilekiln::cpu::Norm::none>,
     tilekiln::cpu::quantise<tilekiln::cpu::bf16, tilekiln::cpu::Norm::none>}};
