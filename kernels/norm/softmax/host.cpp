// Arguments of softmax as the plain data of its engines, and its units.
#include <algorithm>

#include "tilekiln/generated/operators/softmax_entries.h"
#include "tilekiln/runtime/launch.h"

namespace tilekiln::op::softmax {

void fill(const Args&, Call& call) {
  const Arrays& in = call.in;
  norm::SoftmaxProblem& to = call.to.problem;
  to.x = in.x.data, to.x_row = in.x.stride[0];
  to.y = in.y.data, to.y_row = in.y.stride[0];
  to.rows = call.M;
  to.columns = static_cast<int>(call.N);
  to.dtype = static_cast<int>(call.signature.dtype);
}

tilekiln_status launch(StageCall<norm::SoftmaxProblem>& call) {
  const norm::SoftmaxProblem& problem = call.problem;
  const auto rows = static_cast<const norm::SoftmaxEngine*>(call.choice.engine)->rows[problem.dtype];
  // A unit is rows of 16,384 elements together, or one longer row. An element costs about as much as 32 multiply-adds do.
  const int64_t many = std::max(1, 16384 / problem.columns), units = (problem.rows + many - 1) / many;
  const double work = 32.0 * static_cast<double>(problem.rows) * problem.columns;
  return launch_stage(call, call.choice, problem, units, work, 0, [&](int64_t unit, void*) {
    rows(problem, unit * many, std::min<int64_t>(problem.rows, (unit + 1) * many));
  });
}

}  // namespace tilekiln::op::softmax
