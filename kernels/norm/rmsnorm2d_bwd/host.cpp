// SPDX-License-Identifier: MIT
// Arguments of rmsnorm2d_bwd as the plain data of its engines.
#include "kernels/generated/operators/rmsnorm2d_bwd_entries.h"
#include "kernels/norm/backward.h"

namespace tilekiln::op::rmsnorm2d_bwd {

void fill(const Args&, Call& call) {
  norm::Backward& to = call.to.problem;
  norm::put_backward(call.in, call.M, call.N, to);
  norm::put(call.in.inv_rms, to.inverse);

  to.dtype = static_cast<int>(call.signature.dtype);
}

tilekiln_status launch(StageCall<norm::Backward>& call) { return norm::launch_backward(call); }

}  // namespace tilekiln::op::rmsnorm2d_bwd
