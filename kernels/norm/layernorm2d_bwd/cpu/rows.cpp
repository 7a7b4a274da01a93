// SPDX-License-Identifier: MIT
// The rows engine of layernorm2d_bwd for one target.
#include "kernels/norm/cpu/backward.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _layernorm2d_bwd_rows)

extern "C" const tilekiln::norm::BackwardEngine TILEKILN_ENGINE(TILEKILN_TARGET) = tilekiln::cpu::backward_engine<true>;
