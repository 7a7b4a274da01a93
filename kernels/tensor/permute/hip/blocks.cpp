// SPDX-License-Identifier: MIT
// The blocks engine of moves on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/tensor/permute/cuda/blocks.cpp"
