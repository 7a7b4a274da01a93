// A checked backward becomes rows, whose blocks leave sums of columns, and these sums together: in the same launch or another.
#pragma once
#include "kernels/norm/backward_engine.h"
#include "kernels/norm/cuda/launch.h"

namespace tilekiln::cuda::norm {
namespace {

// kMeets: the operator's kernels have a form whose blocks meet and join their sums of columns in one launch.
template <bool kMeets> tilekiln_status launch_backward(const Site& site, const void* problem) {
  const auto& p = *static_cast<const tilekiln::norm::Backward*>(problem);
  const Kernel* const kernel = find_kernel(p.dtype);
  if (kernel == nullptr) return fail_kernel();
  const int bytes = bytes_of(p.dtype);
  const bool wide =
      are_wide(p.rows, {{p.dy, p.dy_row, bytes}, {p.x, p.x_row, bytes}, {p.dx, p.dx_row, bytes}, {p.gamma, 0, bytes}});
  const Build& build = build_of(*kernel);
  BackwardRow row = {p, nullptr, wide ? 1 : 0, 0, 0, 0};
  const int vectors = build.held * bytes / 2;  // of a row that a thread holds
  row.lanes = static_cast<int>(lanes_of(p.dtype, p.columns, vectors, kBackwardThreads));
  // A block a processor, whose teams take rows in turn: more blocks would leave more sums of columns.
  const long long teams = kBackwardThreads / row.lanes, wanted = (p.rows + teams - 1) / teams;
  row.problem.parts =
      std::min<long long>({wanted, static_cast<long long>(facts(site.device.id)->multiprocessors), p.parts});
  const long long blocks = std::max<long long>(1, row.problem.parts);
  const int stage = vectors * kBackwardThreads * 16 * 2;
  row.stages = stages_of(site, build, stage);
  const auto shared = static_cast<unsigned>(row.stages * stage), count = static_cast<unsigned>(blocks);
  // Meeting pays from so many columns on: with fewer, and twice as many sums, blocks wait for each other longer than a second launch takes.
  constexpr int least_met = 2048;
  if (kMeets && p.columns >= least_met) {
    row.width = 8;
    while (row.width < kBackwardThreads && row.width * blocks < p.columns) row.width *= 2;
    TILEKILN_TRY(zero_word(site.device.id, site.stream, &row.word));
    return launch(site, {kernel, "rows_met", {count, 1, 1}, kBackwardThreads, shared, &row, true});
  }
  row.width = 32;
  if (p.parts > 0) TILEKILN_TRY(launch(site, {kernel, "rows", {count, 1, 1}, kBackwardThreads, shared, &row, false}));
  const long long sums = p.columns * (p.dbeta != nullptr ? 2ll : 1ll);
  const auto across = static_cast<unsigned>((sums + row.width - 1) / row.width);
  return launch(site, {kernel, "rows_joined", {across, 1, 1}, kBackwardThreads, 0, &row, false});
}

}  // namespace
}  // namespace tilekiln::cuda::norm
