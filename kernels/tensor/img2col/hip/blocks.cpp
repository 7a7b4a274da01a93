// SPDX-License-Identifier: MIT
// The blocks engine of img2col on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/tensor/img2col/cuda/blocks.cpp"
