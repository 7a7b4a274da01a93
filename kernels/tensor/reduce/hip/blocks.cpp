// SPDX-License-Identifier: MIT
// The blocks engine of reduce on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/tensor/reduce/cuda/blocks.cpp"
