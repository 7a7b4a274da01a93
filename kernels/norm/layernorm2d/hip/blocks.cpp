// SPDX-License-Identifier: MIT
// The blocks engine of layernorm2d on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/norm/layernorm2d/cuda/blocks.cpp"
