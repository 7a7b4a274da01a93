// SPDX-License-Identifier: MIT
// The blocks engine of topk_softmax on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/moe/topk_softmax/cuda/blocks.cpp"
