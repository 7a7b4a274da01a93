// SPDX-License-Identifier: MIT
// The blocks engine of topk_gating on AMD: one text with NVIDIA's.
#define TILEKILN_HIP
#include "kernels/moe/topk_gating/cuda/blocks.cpp"
