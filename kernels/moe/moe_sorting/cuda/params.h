// SPDX-License-Identifier: MIT
// Parameters of CUDA's moe_sorting: the one argument of its kernels, and what the build is made for.
#pragma once

#include "kernels/moe/moe_sorting/engine.h"

namespace tilekiln::cuda::moe_sorting {

struct Params {
  tilekiln::moe::MoeSorting sorting;
  int chunks;   // of tokens and slots, a warp each
  int* counts;  // (chunks, experts): how many a chunk has of an expert, then where its first goes
  int* begins;  // (experts): where an expert's tokens begin, -1 where there is no room or it is elsewhere
  int* heres;   // (experts): its number here
};

// Constants of a build that the host must know; the cubin holds one as `sorting_build`.
struct Build { int threads; };

}  // namespace tilekiln::cuda::moe_sorting
