// SPDX-License-Identifier: MIT
// The blocks engine of smoothquant on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/norm/smoothquant/cuda/blocks.cpp"
