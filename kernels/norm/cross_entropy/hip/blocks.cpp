// SPDX-License-Identifier: MIT
// The blocks engine of cross_entropy on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/norm/cross_entropy/cuda/blocks.cpp"
