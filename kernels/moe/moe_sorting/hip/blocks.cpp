// SPDX-License-Identifier: MIT
// The blocks engine of moe_sorting on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/moe/moe_sorting/cuda/blocks.cpp"
