// Arguments of silu_and_mul_bwd as the plain data of its engine.
#include "kernels/norm/gated.h"

#include "kernels/generated/operators/silu_and_mul_bwd_entries.h"
#include "kernels/norm/host.h"

namespace tilekiln::op::silu_and_mul_bwd {

void fill(const Args&, Call& call) {
  norm::Gated& to = call.to.problem;
  norm::put_rows(call.in.gate, to.gate, to.gate_row);
  norm::put_rows(call.in.up, to.up, to.up_row);
  norm::put_rows(call.in.dy, to.dy, to.dy_row);
  norm::put_rows(call.in.dgate, to.dgate, to.dgate_row);
  norm::put_rows(call.in.dup, to.dup, to.dup_row);
  to.rows = call.M;
  to.columns = static_cast<int>(call.N);
  to.dtype = static_cast<int>(call.signature.dtype);
}

tilekiln_status launch(StageCall<norm::Gated>& call) { return norm::launch_rows<norm::GatedEngine>(call, 24); }

}  // namespace tilekiln::op::silu_and_mul_bwd
