// SPDX-License-Identifier: MIT
// A checked backward becomes rows, whose blocks leave sums of columns, and these sums together: in the same launch or
// another.
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
  BackwardParams params = {p, nullptr, wide ? 1 : 0, 0, 0, 0};
  const int vectors = build.held * bytes / 2;  // of a row that a thread holds
  params.lanes = static_cast<int>(lanes_of(p.dtype, p.columns, vectors, kBackwardThreads));
  if (!kTeamsMeet && params.lanes > 32) params.lanes = kBackwardThreads;
  // A block a processor, whose teams take rows in turn: more blocks would leave more sums of columns.
  const long long teams = kBackwardThreads / params.lanes, wanted = (p.rows + teams - 1) / teams;
  params.problem.parts =
      std::min<long long>({wanted, static_cast<long long>(facts(site.device.id)->multiprocessors), p.parts});
  const long long blocks = std::max<long long>(1, params.problem.parts);
  const int stage = vectors * kBackwardThreads * 16 * 2;
  params.stages = stages_of(site, build, stage);
  const auto shared = static_cast<unsigned>(params.stages * stage), count = static_cast<unsigned>(blocks);
  // Meeting pays from so many columns on: with fewer, and twice as many sums, blocks wait for each other longer than a
  // second launch takes.
  [[maybe_unused]] constexpr int least_met = 2048;
  if constexpr (kBlocksMeet && kMeets) {
    if (p.columns >= least_met) {
      params.width = 8;
      while (params.width < kBackwardThreads && params.width * blocks < p.columns) params.width *= 2;
      TILEKILN_TRY(zero_word(site.device.id, site.stream, &params.word));
      return launch(site, {kernel, "rows_met", {count, 1, 1}, kBackwardThreads, shared, &params, true});
    }
  }
  params.width = 32;
  if (p.parts > 0)
    TILEKILN_TRY(launch(site, {kernel, "rows", {count, 1, 1}, kBackwardThreads, shared, &params, false}));
  const long long sums = p.columns * (p.dbeta != nullptr ? 2ll : 1ll);
  const auto across = static_cast<unsigned>((sums + params.width - 1) / params.width);
  return launch(site, {kernel, "rows_joined", {across, 1, 1}, kBackwardThreads, 0, &params, false});
}

}  // namespace
}  // namespace tilekiln::cuda::norm
