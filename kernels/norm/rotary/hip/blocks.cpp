// SPDX-License-Identifier: MIT
// The blocks engine of rotary on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/norm/rotary/cuda/blocks.cpp"
