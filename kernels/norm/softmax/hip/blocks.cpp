// SPDX-License-Identifier: MIT
// The blocks engine of softmax on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/norm/softmax/cuda/blocks.cpp"
