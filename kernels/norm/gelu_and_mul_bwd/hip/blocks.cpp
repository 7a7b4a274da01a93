// SPDX-License-Identifier: MIT
// The blocks engine of gelu_and_mul_bwd on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/norm/gelu_and_mul_bwd/cuda/blocks.cpp"
