// SPDX-License-Identifier: MIT
// The blocks engine of topk_gating: a checked call is the argument of one launch. Compiled with -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#include "kernels/moe/cuda/launch.h"
#include "kernels/moe/topk_gating/cuda/params.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _topk_gating_blocks)

namespace tilekiln::cuda::moe {
namespace {

tilekiln_status launch_blocks(const Site& site, const void* problem) {
  const auto& a = *static_cast<const tilekiln::moe::TopkGating*>(problem);
  if (a.groups > kMostGroups && a.groups > a.topk_groups)
    return fail_argument("groups", "was %d, must be at most %d on a GPU, or all of them chosen", a.groups, kMostGroups);
  return launch_choices(site, a, "gating_rows");
}

}  // namespace
}  // namespace tilekiln::cuda::moe

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::moe::launch_blocks};
