// SPDX-License-Identifier: MIT
// Host code that the norms' derivatives share.
#pragma once
#include "kernels/norm/backward_engine.h"
#include "kernels/norm/host.h"

namespace tilekiln::norm {

// Parts are as many as threads may want and the sums of which cost little beside the rows: a matter of the sizes alone.
template <class Arrays> void put_backward(const Arrays& in, int64_t rows, int64_t columns, Backward& to) {
  put_rows(in.dy, to.dy, to.dy_row);
  put_rows(in.x, to.x, to.x_row);
  put_rows(in.dx, to.dx, to.dx_row);
  put(in.gamma, to.gamma);
  put(in.dgamma, to.dgamma);
  to.rows = rows;
  to.columns = static_cast<int>(columns);
  to.part_rows = std::max<int64_t>(16, (rows + 63) / 64);
  to.parts = (rows + to.part_rows - 1) / to.part_rows;
}

[[nodiscard]] inline tilekiln_status launch_backward(StageCall<Backward>& call) {
  Backward& problem = call.problem;
  CallMemory sums;
  const bool kernels = !call.backend->takes_units;
  // Blocks of a kernel take rows in turn. So many keep a processor's loads in flight, and more would leave more sums than that is worth.
  if (__builtin_expect(kernels, 0)) {
    const int64_t a_processor = std::clamp<int64_t>(8192 / problem.columns, 2, 32);
    problem.parts = std::min<int64_t>(problem.rows, a_processor * call.backend->processors(call.device));
  }
  TILEKILN_TRY(sums.get(call, sizeof(float) * 2 * static_cast<size_t>(std::max<int64_t>(1, problem.parts)) *
                                  static_cast<size_t>(problem.columns)));
  problem.sums = sums.as<float>();
  if (__builtin_expect(kernels, 0)) return launch_kernel(call, call.choice, problem);
  const auto& engine = *static_cast<const BackwardEngine*>(call.choice.engine);
  const auto part = engine.part[problem.dtype];
  const auto join = engine.join[problem.dtype];
  const double elements = static_cast<double>(problem.rows) * problem.columns;
  TILEKILN_TRY(launch_stage(call, call.choice, problem, problem.parts, 32 * elements, 0,
                            [&](int64_t unit, void*) { part(problem, unit); }));
  const int columns = problem.columns, many = 1024;
  const double work = 8.0 * static_cast<double>(problem.parts) * columns;
  return launch_stage(call, call.choice, problem, (columns + many - 1) / many, work, 0, [&](int64_t unit, void*) {
    const int first = static_cast<int>(unit) * many;
    join(problem, first, std::min(columns, first + many));
  });
}

}  // namespace tilekiln::norm
