// SPDX-License-Identifier: MIT
// The blocks engine of topk_softmax: a checked call is the argument of one launch. Compiled with -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#include "kernels/moe/cuda/launch.h"
#include "kernels/moe/topk_softmax/engine.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _topk_softmax_blocks)

namespace tilekiln::cuda::moe {
namespace {

tilekiln_status launch_blocks(const Site& site, const void* problem) {
  return launch_choices(site, *static_cast<const tilekiln::moe::TopkSoftmax*>(problem), "topk_rows");
}

}  // namespace
}  // namespace tilekiln::cuda::moe

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::moe::launch_blocks};
