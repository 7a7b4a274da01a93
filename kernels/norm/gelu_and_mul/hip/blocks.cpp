// SPDX-License-Identifier: MIT
// The blocks engine of gelu_and_mul on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/norm/gelu_and_mul/cuda/blocks.cpp"
