// SPDX-License-Identifier: MIT
// The blocks engine of cross_entropy.
#include "kernels/norm/cuda/launch.h"

namespace tilekiln::cuda::norm {
namespace {

tilekiln_status launch_entropy(const Site& site, const void* problem) {
  const auto& p = *static_cast<const tilekiln::norm::CrossEntropy*>(problem);
  const int bytes = bytes_of(p.dtype);
  return launch_rows(site, p, {{p.logits, p.logits_row, bytes}, {p.dlogits, p.dlogits_row, bytes}});
}

}  // namespace
}  // namespace tilekiln::cuda::norm

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        _cross_entropy) = {tilekiln::cuda::norm::launch_entropy};
