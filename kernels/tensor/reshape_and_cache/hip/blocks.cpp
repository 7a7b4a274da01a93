// SPDX-License-Identifier: MIT
// The blocks engine of reshape_and_cache on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/tensor/reshape_and_cache/cuda/blocks.cpp"
