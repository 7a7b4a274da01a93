// SPDX-License-Identifier: MIT
// Arguments of softmax as the plain data of its engines.
#include "kernels/norm/host.h"
#include "kernels/generated/operators/softmax_entries.h"

namespace tilekiln::op::softmax {

void fill(const Args&, Call& call) {
  const Arrays& in = call.in;
  norm::SoftmaxProblem& to = call.to.problem;
  to.x = in.x.data, to.x_row = in.x.stride[0];
  to.y = in.y.data, to.y_row = in.y.stride[0];
  to.rows = call.M;
  to.columns = static_cast<int>(call.N);
  to.dtype = static_cast<int>(call.signature.dtype);
  norm::put_streaming(in.x, to);
}

tilekiln_status launch(StageCall<norm::SoftmaxProblem>& call) {
  return norm::launch_rows<norm::SoftmaxEngine>(call, 32);
}

}  // namespace tilekiln::op::softmax
