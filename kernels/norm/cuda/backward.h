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
  const Row<tilekiln::norm::Backward> row = {p, wide ? 1 : 0, 0};
  const unsigned threads = lanes_of(p.dtype, p.columns, build_of(*kernel).held, 512);
  if (p.parts > 0)
    TILEKILN_TRY(launch(site, {kernel, "rows", {static_cast<unsigned>(p.parts), 1, 1}, threads, 0, &row, false}));
  constexpr int columns = 32;  // of a block
  const auto across = static_cast<unsigned>((static_cast<long long>(p.columns) + columns - 1) / columns);
  return launch(site, {kernel, "rows_joined", {across, p.dbeta != nullptr ? 2u : 1u, 1}, 1024, 0, &row, false});
}

}  // namespace
}  // namespace tilekiln::cuda::norm
