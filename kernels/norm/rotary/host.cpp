// SPDX-License-Identifier: MIT
// Arguments of rotary as the plain data of its engine.
#include "kernels/norm/host.h"
#include "kernels/generated/operators/rotary_entries.h"

namespace tilekiln::op::rotary {

tilekiln_status tables(const Args& args, Call& call) {
  if (2 * call.W > call.D) {
    return fail_argument("cos", "was for a rotary_dim of %lld, must be at most %lld, the head dim of x",
                         static_cast<long long>(2 * call.W), static_cast<long long>(call.D));
  }
  const int64_t last = args.start + call.S;
  if (args.positions == nullptr && call.B * call.H > 0 && call.S > 0 && last > call.L) {
    return fail_argument("cos", "had %lld positions, must have %lld, start + seqlen", static_cast<long long>(call.L),
                         static_cast<long long>(last));
  }
  return TILEKILN_OK;
}

tilekiln_status pairs(const Args& args, tilekiln_shape* shape) {
  *shape = {1, {args.cos->shape[1]}};
  return TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  norm::Rotary& to = call.to.problem;
  to.x = in.x.data, to.x_batch = in.x.stride[0], to.x_token = in.x.stride[1], to.x_head = in.x.stride[2];
  to.y = in.y.data, to.y_batch = in.y.stride[0], to.y_token = in.y.stride[1], to.y_head = in.y.stride[2];
  norm::put_rows(in.cos, to.cos, to.cos_row);
  norm::put_rows(in.sin, to.sin, to.sin_row);
  norm::put_rows(in.positions, to.positions, to.positions_row);
  if (in.axes.given()) {
    norm::put(in.axes, to.axes);
    to.positions_axis = in.positions.stride[0], to.positions_row = in.positions.stride[1];
    to.axis_count = static_cast<int>(in.positions.shape[0]);
  }
  to.position_bytes = in.positions.given() ? static_cast<int>(dtype_bytes(in.positions.dtype)) : 4;
  to.rows = call.B * call.S, to.tokens = call.S;
  to.start = args.start;
  to.table_rows = call.L;
  to.heads = static_cast<int>(call.H);
  to.columns = static_cast<int>(call.D);
  to.half = static_cast<int>(call.W);
  to.dtype = static_cast<int>(call.signature.dtype);
  to.tables = static_cast<int>(call.signature.tables);
  to.interleaved = args.interleaved, to.conjugate = args.conjugate;
}

tilekiln_status launch(StageCall<norm::Rotary>& call) {
  if (!call.backend->takes_units && call.problem.axes != nullptr)
    return fail_argument("axes", "was given, must be null on a GPU: gather cos and sin of each token there");
  const int64_t row = std::max<int64_t>(1, int64_t(call.problem.heads) * call.problem.columns);
  return norm::launch_rows_by<norm::RotaryEngine>(
      call, std::max<int64_t>(1, 16384 / row),
      12.0 * static_cast<double>(call.problem.rows) * static_cast<double>(row));
}

}  // namespace tilekiln::op::rotary
