// SPDX-License-Identifier: MIT
// The blocks engine of rmsnorm2d_rdquant on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/norm/rmsnorm2d_rdquant/cuda/blocks.cpp"
