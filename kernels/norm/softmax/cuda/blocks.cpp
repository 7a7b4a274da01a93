// SPDX-License-Identifier: MIT
// The blocks engine of softmax.
#include "kernels/norm/cuda/launch.h"
#include "kernels/norm/softmax/engine.h"

namespace tilekiln::cuda::norm {
namespace {

tilekiln_status launch_softmax(const Site& site, const void* problem) {
  const auto& p = *static_cast<const tilekiln::norm::SoftmaxProblem*>(problem);
  const int bytes = bytes_of(p.dtype);
  return launch_once(site, p, "rows_whole", true, kRingVectors, {{p.x, p.x_row, bytes}, {p.y, p.y_row, bytes}});
}

}  // namespace
}  // namespace tilekiln::cuda::norm

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        _softmax) = {tilekiln::cuda::norm::launch_softmax};
