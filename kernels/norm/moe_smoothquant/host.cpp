// SPDX-License-Identifier: MIT
// Arguments of moe_smoothquant as the plain data of its engines.
#include "kernels/norm/host.h"
#include "kernels/generated/operators/moe_smoothquant_entries.h"

namespace tilekiln::op::moe_smoothquant {

void fill(const Args&, Call& call) {
  norm::Problem& to = call.to.problem;
  norm::put_lengths(call.in, call.M * call.K, call.N, to);
  to.y_choice = call.in.y.stride[0];
  to.y_row = call.in.y.stride[1];
  to.y_scale_choice = call.in.y_scale.stride[0];
  to.smooth_scale_row = call.in.smooth_scale.stride[0];
  norm::put_rows(call.in.topk_ids, to.topk_ids, to.topk_ids_row);
  to.tokens = static_cast<int>(call.M);
  to.experts = static_cast<int>(call.E);
  norm::put_quantised(call.in, call.signature, to);
}

tilekiln_status launch(StageCall<norm::Problem>& call) { return norm::launch_rows(call); }

}  // namespace tilekiln::op::moe_smoothquant
