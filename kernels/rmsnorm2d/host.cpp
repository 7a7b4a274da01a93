// Arguments of rmsnorm2d as the plain data of its engines, and its units.
#include "tilekiln/generated/operators/rmsnorm2d_entries.h"
#include "tilekiln/runtime/parallel.h"

namespace tilekiln::op::rmsnorm2d {

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  norm::RmsProblem& to = call.to.problem;
  to.x = in.x.data, to.x_row = in.x.stride[0];
  to.gamma = in.gamma.data;
  to.y = in.y.data, to.y_row = in.y.stride[0];
  if (in.residual.given()) to.residual = in.residual.data, to.residual_row = in.residual.stride[0];
  if (in.residual_out.given()) to.residual_out = in.residual_out.data, to.residual_out_row = in.residual_out.stride[0];
  if (in.inv_rms.given()) to.inv_rms = reinterpret_cast<float*>(in.inv_rms.data);
  to.rows = call.M;
  to.columns = static_cast<int>(call.N);
  to.dtype = static_cast<int>(call.signature.dtype);
  to.epsilon = args.epsilon;
}

tilekiln_status launch(StageCall<norm::RmsProblem>& call) {
  const norm::RmsProblem& problem = call.problem;
  const auto rows = static_cast<const norm::RmsEngine*>(call.choice.engine)->rows[problem.dtype];
  // A unit is rows of 16,384 elements together, or one longer row. An element costs about as much as 16 multiply-adds do.
  const int64_t many = std::max(1, 16384 / problem.columns), units = (problem.rows + many - 1) / many;
  const double work = 16.0 * static_cast<double>(problem.rows) * problem.columns;
  return run_units(call, units, work, 0, [&](int64_t unit, void*) {
    rows(problem, unit * many, std::min<int64_t>(problem.rows, (unit + 1) * many));
  });
}

}  // namespace tilekiln::op::rmsnorm2d
