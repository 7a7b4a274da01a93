// SPDX-License-Identifier: MIT
// The blocks engine of merge.
#include "kernels/norm/cuda/launch.h"
#include "kernels/norm/merge/engine.h"

namespace tilekiln::cuda::norm {
namespace {

tilekiln_status launch_merge(const Site& site, const void* problem) {
  const auto& p = *static_cast<const tilekiln::norm::MergeProblem*>(problem);
  const int bytes = bytes_of(p.dtype);
  return launch_rows(site, p, {{p.out_a, p.a_row, bytes}, {p.out_b, p.b_row, bytes}, {p.out, p.out_row, bytes}});
}

}  // namespace
}  // namespace tilekiln::cuda::norm

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET, _merge) = {tilekiln::cuda::norm::launch_merge};
