// SPDX-License-Identifier: MIT
// The blocks engine of layernorm2d_bwd on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/norm/layernorm2d_bwd/cuda/blocks.cpp"
