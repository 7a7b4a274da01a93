// SPDX-License-Identifier: MIT
// Arguments of silu_and_mul as the plain data of its engine.
#include "kernels/generated/operators/silu_and_mul_entries.h"
#include "kernels/norm/gated_host.h"

namespace tilekiln::op::silu_and_mul {

void fill(const Args&, Call& call) {
  norm::put_gated(call.in, call.M, call.N, call.to.problem);
  call.to.problem.dtype = static_cast<int>(call.signature.dtype);
}

tilekiln_status launch(StageCall<norm::Gated>& call) { return norm::launch_rows<norm::GatedEngine>(call, 24); }

}  // namespace tilekiln::op::silu_and_mul
