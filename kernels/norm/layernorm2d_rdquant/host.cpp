// SPDX-License-Identifier: MIT
// Arguments of layernorm2d_rdquant as the plain data of its engines.
#include "kernels/norm/host.h"
#include "kernels/generated/operators/layernorm2d_rdquant_entries.h"

namespace tilekiln::op::layernorm2d_rdquant {

void fill(const Args& args, Call& call) {
  norm::Problem& to = call.to.problem;
  norm::put_common(call.in, call.M, call.N, to);
  norm::put_rows(call.in.unquantised, to.unquantised, to.unquantised_row);
  norm::put(call.in.beta, to.beta);
  to.epsilon = args.epsilon;
  norm::put_quantised(call.in, call.signature, to);
}

tilekiln_status launch(StageCall<norm::Problem>& call) { return norm::launch_rows(call); }

}  // namespace tilekiln::op::layernorm2d_rdquant
