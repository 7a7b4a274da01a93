// SPDX-License-Identifier: MIT
// The blocks engine of gelu_and_mul: rows as those of silu_and_mul.
#define TILEKILN_FAMILY _gelu_and_mul
#include "kernels/norm/silu_and_mul/cuda/blocks.cpp"
