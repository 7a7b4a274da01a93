// SPDX-License-Identifier: MIT
// Arguments of merge as the plain data of its engines.
#include "kernels/norm/host.h"
#include "kernels/generated/operators/merge_entries.h"

namespace tilekiln::op::merge {

void fill(const Args&, Call& call) {
  const Arrays& in = call.in;
  norm::MergeProblem& to = call.to.problem;
  norm::put_rows(in.out_a, to.out_a, to.a_row);
  norm::put_rows(in.out_b, to.out_b, to.b_row);
  norm::put_rows(in.out, to.out, to.out_row);
  norm::put_rows(in.lse_a, to.lse_a, to.a_step);
  norm::put_rows(in.lse_b, to.lse_b, to.b_step);
  norm::put_rows(in.lse, to.lse, to.lse_step);
  to.rows = call.M;
  to.columns = static_cast<int>(call.N);
  to.dtype = static_cast<int>(call.signature.dtype);
}

tilekiln_status launch(StageCall<norm::MergeProblem>& call) { return norm::launch_rows<norm::MergeEngine>(call, 2); }

}  // namespace tilekiln::op::merge
