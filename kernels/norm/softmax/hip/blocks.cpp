// SPDX-License-Identifier: MIT
// The blocks engine of softmax on HIP targets.
#include "kernels/norm/hip/launch.h"
#include "kernels/norm/softmax/engine.h"

namespace tilekiln::hip::norm {
namespace {

tilekiln_status launch_softmax(const Site& site, const void* problem) {
  const auto& p = *static_cast<const tilekiln::norm::SoftmaxProblem*>(problem);
  const int bytes = bytes_of(p.dtype);
  return launch_rows(site, p, {{p.x, p.x_row, bytes}, {p.y, p.y_row, bytes}});
}

}  // namespace
}  // namespace tilekiln::hip::norm

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET, _softmax) = {
    tilekiln::hip::norm::launch_softmax, tilekiln::hip::any};
