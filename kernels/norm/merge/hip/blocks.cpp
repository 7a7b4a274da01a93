// SPDX-License-Identifier: MIT
// The blocks engine of merge on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/norm/merge/cuda/blocks.cpp"
