// The units of an operator over rows.
#include <algorithm>

#include "tilekiln/norm/host.h"
#include "tilekiln/runtime/launch.h"

namespace tilekiln::norm {

tilekiln_status launch_rows(StageCall<Problem>& call) {
  const Problem& problem = call.problem;
  const auto rows = static_cast<const Engine*>(call.choice.engine)->rows[problem.dtype];
  const int64_t many = std::max(1, 16384 / problem.columns), units = (problem.rows + many - 1) / many;
  // An element costs about as much as 16 multiply-adds do.
  const double work = 16.0 * static_cast<double>(problem.rows) * problem.columns;
  return launch_stage(call, call.choice, problem, units, work, 0, [&](int64_t unit, void*) {
    rows(problem, unit * many, std::min<int64_t>(problem.rows, (unit + 1) * many));
  });
}

}  // namespace tilekiln::norm
