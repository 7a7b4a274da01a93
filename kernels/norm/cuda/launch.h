// A checked call over rows becomes the row of one launch. Included once, by the file of a pipeline, which is compiled with
// -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#pragma once
#include <algorithm>
#include <initializer_list>

#include "kernels/backends/cuda/held.h"
#include "kernels/norm/cuda/row.h"
#include "kernels/norm/wide.h"

#define TILEKILN_JOIN(a, b, c, d) a##b##c##d
#define TILEKILN_ENGINE(target, family) TILEKILN_JOIN(tilekiln_, target, family, _blocks)

namespace tilekiln::cuda::norm {
namespace {

const Build& build_of(const Kernel& kernel) { return *static_cast<const Build*>(kernel.build); }

using tilekiln::norm::are_wide;
using tilekiln::norm::ArrayRows;
using tilekiln::norm::bytes_of;

const Kernel* find_kernel(int dtype) {
  return find_held([&](const Kernel& one) { return build_of(one).dtype == dtype; });
}
tilekiln_status fail_kernel() {
  return fail(TILEKILN_INTERNAL, "the library has a row over rows for cuda without its kernel");
}

// Threads that share a row of which each holds so many vectors.
unsigned lanes_of(int dtype, int columns, int held, unsigned most) {
  const int wide = dtype == 0 ? 4 : 8;
  const long long vectors = (static_cast<long long>(columns) + wide - 1) / wide;
  unsigned lanes = 32;
  while (lanes < most && static_cast<long long>(lanes) * held < vectors) lanes *= 2;
  return lanes;
}

// Stages of so many bytes of shared memory that a block has, at most those of the build.
int stages_of(const Site& site, const Build& build, int bytes) {
  constexpr int own = 1024;  // of a block beside them
  return std::clamp((facts(site.device.id)->shared_bytes - own) / bytes, 1, build.stages);
}

template <class Problem> tilekiln_status launch_rows(const Site& site, const Problem& p,
                                                     std::initializer_list<ArrayRows> arrays) {
  if (p.rows == 0) return TILEKILN_OK;
  const Kernel* const kernel = find_kernel(p.dtype);
  if (kernel == nullptr) return fail_kernel();
  const Build& build = build_of(*kernel);
  const unsigned lanes = lanes_of(p.dtype, p.columns, build.held, build.lanes);
  Row<Problem> row = {p, are_wide(p.rows, arrays) ? 1 : 0, lanes == 32 ? 1 : 0, 0};
  const long long bytes = static_cast<long long>(p.columns) * bytes_of(p.dtype);
  // Rows that registers of `rows` do not hold are read again from memory, but by this.
  if (build.stages > 0 && row.wide != 0 && bytes % 16 == 0 && bytes > 16ll * lanes * build.held) {
    row.stages = stages_of(site, build, 16 * kStagedThreads);
    const long long a_thread = (bytes / 16 - 1) / kStagedThreads + 1;
    const auto blocks = static_cast<unsigned>(std::min<long long>(p.rows, facts(site.device.id)->multiprocessors));
    const auto shared = static_cast<unsigned>(row.stages * 16 * kStagedThreads);
    if (a_thread <= std::min(kStagedVectors, row.stages))
      return launch(site, {kernel, "rows_staged", {blocks, 1, 1}, kStagedThreads, shared, &row, false});
  }
  const unsigned threads = row.warps != 0 ? 128 : lanes;
  const long long blocks = row.warps != 0 ? (p.rows + 3) / 4 : p.rows;
  const auto grid = static_cast<unsigned>(std::min<long long>(blocks, INT32_MAX));
  return launch(site, {kernel, "rows", {grid, 1, 1}, threads, 0, &row, false});
}

[[maybe_unused]] tilekiln_status launch_normalise(const Site& site, const void* problem) {
  const auto& p = *static_cast<const tilekiln::norm::Problem*>(problem);
  const int bytes = bytes_of(p.dtype);
  const void* const y = p.y_scale != nullptr ? nullptr : p.y;  // bytes are stored as they may be
  return launch_rows(site, p,
                     {{p.x, p.x_row, bytes},
                      {p.residual, p.residual_row, bytes},
                      {p.residual_out, p.residual_out_row, bytes},
                      {y, p.y_row, bytes},
                      {p.unquantised, p.unquantised_row, bytes},
                      {p.gamma, 0, bytes},
                      {p.beta, 0, bytes}});
}

}  // namespace
}  // namespace tilekiln::cuda::norm
