// SPDX-License-Identifier: MIT
// The blocks engine of moe_smoothquant on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/norm/moe_smoothquant/cuda/blocks.cpp"
