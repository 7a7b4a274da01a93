// SPDX-License-Identifier: MIT
// Arguments of layernorm2d as the plain data of its engines.
#include "kernels/norm/host.h"
#include "kernels/generated/operators/layernorm2d_entries.h"

namespace tilekiln::op::layernorm2d {

void fill(const Args& args, Call& call) {
  norm::Problem& to = call.to.problem;
  norm::put_common(call.in, call.M, call.N, to);
  norm::put_streaming(call.in.x, to);
  norm::put(call.in.beta, to.beta);
  norm::put(call.in.mean, to.mean);
  norm::put(call.in.inv_std, to.inverse);
  to.dtype = static_cast<int>(call.signature.dtype);
  to.epsilon = args.epsilon;
}

tilekiln_status launch(StageCall<norm::Problem>& call) { return norm::launch_rows(call); }

}  // namespace tilekiln::op::layernorm2d
