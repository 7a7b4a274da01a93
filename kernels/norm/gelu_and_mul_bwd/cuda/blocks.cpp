// SPDX-License-Identifier: MIT
// The blocks engine of gelu_and_mul_bwd: rows as those of silu_and_mul_bwd.
#define TILEKILN_FAMILY _gelu_and_mul_bwd
#include "kernels/norm/silu_and_mul_bwd/cuda/blocks.cpp"
