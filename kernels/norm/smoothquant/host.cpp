// SPDX-License-Identifier: MIT
// Arguments of smoothquant as the plain data of its engines.
#include "kernels/norm/host.h"
#include "kernels/generated/operators/smoothquant_entries.h"

namespace tilekiln::op::smoothquant {

void fill(const Args&, Call& call) {
  norm::Problem& to = call.to.problem;
  norm::put_lengths(call.in, call.M, call.N, to);
  norm::put_quantised(call.in, call.signature, to);
}

tilekiln_status launch(StageCall<norm::Problem>& call) { return norm::launch_rows(call); }

}  // namespace tilekiln::op::smoothquant
