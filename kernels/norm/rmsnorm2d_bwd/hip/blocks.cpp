// SPDX-License-Identifier: MIT
// The blocks engine of rmsnorm2d_bwd on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/norm/rmsnorm2d_bwd/cuda/blocks.cpp"
