// SPDX-License-Identifier: MIT
// The blocks engine of topk_gating: a checked call is the argument of one launch. Compiled with -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#include <algorithm>

#include "kernels/backends/held.h"
#include "kernels/moe/topk_gating/cuda/params.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _topk_gating_blocks)

namespace tilekiln::cuda::moe {
namespace {

tilekiln_status launch_blocks(const Site& site, const void* problem) {
  const auto& a = *static_cast<const tilekiln::moe::TopkGating*>(problem);
  if (a.rows == 0) return TILEKILN_OK;
  if (a.groups > kMostGroups && a.groups > a.topk_groups)
    return fail_argument("groups", "was %d, must be at most %d on a GPU, or all of them chosen", a.groups, kMostGroups);
  const Kernel* const kernel =
      find_held([&](const Kernel& one) { return static_cast<const Build*>(one.build)->dtype == a.dtype; });
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has topk_gating for a GPU without its kernel");
  const int threads = static_cast<const Build*>(kernel->build)->threads;
  const long long rows = threads / 32, blocks = (a.rows + rows - 1) / rows;
  const auto grid = static_cast<unsigned>(std::min<long long>(blocks, INT32_MAX));
  return launch(site, {kernel, "gating_rows", {grid, 1, 1}, static_cast<unsigned>(threads), 0, &a, false});
}

}  // namespace
}  // namespace tilekiln::cuda::moe

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::moe::launch_blocks};
