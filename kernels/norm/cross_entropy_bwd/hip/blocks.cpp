// SPDX-License-Identifier: MIT
// The blocks engine of cross_entropy_bwd on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/norm/cross_entropy_bwd/cuda/blocks.cpp"
