// SPDX-License-Identifier: MIT
// Arguments of cross_entropy as the plain data of its engine.
#include "kernels/generated/operators/cross_entropy_entries.h"
#include "kernels/norm/cross_entropy_host.h"

namespace tilekiln::op::cross_entropy {

void fill(const Args& args, Call& call) {
  norm::CrossEntropy& to = call.to.problem;
  norm::put_entropy(args, call.in, call.M, call.N, to);
  to.dtype = static_cast<int>(call.signature.dtype);
  norm::put(call.in.precomputed_lse, to.given_lse);
  norm::put(call.in.loss, to.loss);
  norm::put(call.in.lse, to.lse);
}

tilekiln_status launch(StageCall<norm::CrossEntropy>& call) {
  return norm::launch_rows<norm::CrossEntropyEngine>(call, 32);
}

}  // namespace tilekiln::op::cross_entropy
