// SPDX-License-Identifier: MIT
// Arguments of layernorm2d_bwd as the plain data of its engines.
#include "kernels/generated/operators/layernorm2d_bwd_entries.h"
#include "kernels/norm/backward.h"

namespace tilekiln::op::layernorm2d_bwd {

void fill(const Args&, Call& call) {
  norm::Backward& to = call.to.problem;
  norm::put_backward(call.in, call.M, call.N, to);
  norm::put(call.in.inv_std, to.inverse);
  norm::put(call.in.mean, to.mean);
  norm::put(call.in.dbeta, to.dbeta);
  to.dtype = static_cast<int>(call.signature.dtype);
}

tilekiln_status launch(StageCall<norm::Backward>& call) { return norm::launch_backward(call); }

}  // namespace tilekiln::op::layernorm2d_bwd
