// A checked backward becomes two launches: rows, whose blocks leave sums of columns, and these sums together.
#pragma once
#include "kernels/norm/backward_engine.h"
#include "kernels/norm/cuda/launch.h"

namespace tilekiln::cuda::norm {
namespace {

tilekiln_status launch_backward(const Site& site, const void* problem) {
  const auto& p = *static_cast<const tilekiln::norm::Backward*>(problem);
  const Kernel* const kernel = find_kernel(p.dtype);
  if (kernel == nullptr) return fail_kernel();
  const int bytes = bytes_of(p.dtype);
  const bool wide =
      are_wide(p.rows, {{p.dy, p.dy_row, bytes}, {p.x, p.x_row, bytes}, {p.dx, p.dx_row, bytes}, {p.gamma, 0, bytes}});
  const Build& build = build_of(*kernel);
  BackwardRow row = {p, wide ? 1 : 0, 0, 0};
  const int vectors = build.held * bytes / 2;  // of a row that a thread holds
  row.lanes = static_cast<int>(lanes_of(p.dtype, p.columns, vectors, kBackwardThreads));
  // A block a processor, whose teams take rows in turn: more blocks would leave more sums of columns.
  const long long teams = kBackwardThreads / row.lanes, blocks = (p.rows + teams - 1) / teams;
  row.problem.parts =
      std::min<long long>({blocks, static_cast<long long>(facts(site.device.id)->multiprocessors), p.parts});
  const int stage = vectors * kBackwardThreads * 16 * 2;
  row.stages = stages_of(site, build, stage);
  const auto shared = static_cast<unsigned>(row.stages * stage);
  if (p.parts > 0)
    TILEKILN_TRY(launch(
        site,
        {kernel, "rows", {static_cast<unsigned>(row.problem.parts), 1, 1}, kBackwardThreads, shared, &row, false}));
  constexpr int columns = 32;  // of a block
  const auto across = static_cast<unsigned>((static_cast<long long>(p.columns) + columns - 1) / columns);
  return launch(site,
                {kernel, "rows_joined", {across, p.dbeta != nullptr ? 2u : 1u, 1}, kBackwardThreads, 0, &row, false});
}

}  // namespace
}  // namespace tilekiln::cuda::norm
