// SPDX-License-Identifier: MIT
// Arguments of cross_entropy_bwd as the plain data of its engine.
#include "kernels/generated/operators/cross_entropy_bwd_entries.h"
#include "kernels/norm/cross_entropy_host.h"

namespace tilekiln::op::cross_entropy_bwd {

void fill(const Args& args, Call& call) {
  norm::CrossEntropy& to = call.to.problem;
  norm::put_entropy(args, call.in, call.M, call.N, to);
  to.dtype = static_cast<int>(call.signature.dtype);
  norm::put(call.in.lse, to.given_lse);
  norm::put(call.in.dloss, to.dloss);
  norm::put_rows(call.in.dlogits, to.dlogits, to.dlogits_row);
}

tilekiln_status launch(StageCall<norm::CrossEntropy>& call) {
  return norm::launch_rows<norm::CrossEntropyEngine>(call, 32);
}

}  // namespace tilekiln::op::cross_entropy_bwd
