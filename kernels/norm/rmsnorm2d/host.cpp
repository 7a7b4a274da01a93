// SPDX-License-Identifier: MIT
// Arguments of rmsnorm2d as the plain data of its engines.
#include "kernels/norm/host.h"
#include "kernels/generated/operators/rmsnorm2d_entries.h"

namespace tilekiln::op::rmsnorm2d {

void fill(const Args& args, Call& call) {
  norm::Problem& to = call.to.problem;
  norm::put_common(call.in, call.M, call.N, to);
  norm::put_streaming(call.in.x, to);
  norm::put(call.in.inv_rms, to.inverse);
  to.dtype = static_cast<int>(call.signature.dtype);
  to.rounding = args.rounding;
  to.epsilon = args.epsilon;
}

tilekiln_status launch(StageCall<norm::Problem>& call) { return norm::launch_rows(call); }

}  // namespace tilekiln::op::rmsnorm2d
