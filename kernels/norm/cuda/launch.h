// SPDX-License-Identifier: MIT
// A checked call over rows becomes the parameters of one launch. Included once, by the file of a pipeline, which is
// compiled with -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#pragma once
#include <algorithm>
#include <initializer_list>

#include "kernels/backends/held.h"
#include "kernels/norm/cuda/params.h"
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

// Launches kernels that take rows as they may be. `held`: vectors of a row that a thread has registers for.
template <class Problem>
tilekiln_status launch_rows(const Site& site, const Problem& p, std::initializer_list<ArrayRows> arrays, int held = 0) {
  if (p.rows == 0) return TILEKILN_OK;
  const Kernel* const kernel = find_kernel(p.dtype);
  if (kernel == nullptr) return fail_kernel();
  const Build& build = build_of(*kernel);
  const unsigned lanes = lanes_of(p.dtype, p.columns, held > 0 ? held : build.held, build.lanes);
  const Params<Problem> params = {p, are_wide(p.rows, arrays) ? 1 : 0, lanes == 32 ? 1 : 0, 0};
  const unsigned threads = params.warps != 0 ? 128 : lanes;
  const long long blocks = params.warps != 0 ? (p.rows + 3) / 4 : p.rows;
  const auto grid = static_cast<unsigned>(std::min<long long>(blocks, INT32_MAX));
  return launch(site, {kernel, "rows", {grid, 1, 1}, threads, 0, &params, false, build.early != 0});
}

// Rows of whole vectors are read once, by `whole` where registers of a block hold them, by rows_staged where its shared
// memory does; others are taken as they may be. `even`: what the caller knows of arrays that are not among `arrays`.
// `cluster`: as `whole`, null: there is none.
template <class Problem> tilekiln_status launch_once(const Site& site, const Problem& p, const char* whole, bool even,
                                                     int most, std::initializer_list<ArrayRows> arrays,
                                                     const char* cluster = nullptr) {
  constexpr long long most_rows = INT32_MAX;
  const int bytes = bytes_of(p.dtype);
  even = even && static_cast<long long>(p.columns) * bytes % 16 == 0 && p.rows <= most_rows;
  if (!even || p.rows == 0 || !are_wide(p.rows, arrays)) return launch_rows(site, p, arrays, 1);
  const Kernel* const kernel = find_kernel(p.dtype);
  if (kernel == nullptr) return fail_kernel();
  const Build& build = build_of(*kernel);
  const long long vectors = static_cast<long long>(p.columns) * bytes / 16;
  const unsigned lanes = lanes_of(p.dtype, p.columns, build.held, build.lanes);
  const bool fits = static_cast<long long>(lanes) * build.held >= vectors;
  Params<Problem> params = {p, 1, lanes == 32 ? 1 : 0,
                            build.stages > 0 ? stages_of(site, build, 16 * kStagedThreads) : 0};
  constexpr long long staged_from = 32768;  // bytes: of longer rows a processor has one at a time
  // A longer row than that lies in the registers of several processors: in shared memory of one it has no room beside
  // the next.
  constexpr long long clustered_from = 65536;
  if (cluster != nullptr && build.clusters != 0 && vectors * 16 > clustered_from &&
      vectors <= 1ll * kCluster * kClusterThreads * build.held && p.rows <= most_rows / kCluster) {
    const auto blocks = static_cast<unsigned>(kCluster * p.rows);
    return launch(site, {kernel, cluster, {blocks, 1, 1}, kClusterThreads, 0, &params, false});
  }
  if (build.stages > 0 && vectors * 16 > staged_from &&
      vectors <= 1ll * kStagedThreads * std::min(params.stages, most)) {
    const auto blocks = static_cast<unsigned>(std::min<long long>(p.rows, facts(site.device.id)->multiprocessors));
    const auto shared = static_cast<unsigned>(params.stages * 16 * kStagedThreads);
    return launch(site, {kernel, "rows_staged", {blocks, 1, 1}, kStagedThreads, shared, &params, false});
  }
  if (!fits) return launch_rows(site, p, arrays, 1);
  const unsigned threads = params.warps != 0 ? 128 : lanes;
  const auto blocks = static_cast<unsigned>(params.warps != 0 ? (p.rows + 3) / 4 : p.rows);
  return launch(site, {kernel, whole, {blocks, 1, 1}, threads, 0, &params, false, build.early != 0});
}

[[maybe_unused]] tilekiln_status launch_normalise(const Site& site, const void* problem) {
  const auto& p = *static_cast<const tilekiln::norm::Problem*>(problem);
  const int bytes = bytes_of(p.dtype);
  const bool quantised = p.y_scale != nullptr;
  // Rows of bytes are written by as many as a vector of x has elements; other rows of theirs are stored as they may be.
  const auto at = reinterpret_cast<uintptr_t>(p.y), row = static_cast<uintptr_t>(p.y_row),
             wide = uintptr_t{16} / static_cast<uintptr_t>(bytes);
  const bool even = !quantised || (at % wide == 0 && (p.rows == 1 || row % wide == 0) && p.unquantised == nullptr &&
                                   p.rounding == 0 && reinterpret_cast<uintptr_t>(p.smooth_scale) % 16 == 0);
  // Clusters gain where numbers of columns are read (layernorm2d: .70 to .75 of a copy, with a residual .91 to .96),
  // else lose (.88 to .79).
  const bool beside = p.gamma != nullptr || p.smooth_scale != nullptr;
  return launch_once(site, p, p.residual != nullptr ? "added_whole" : "rows_whole", even, INT32_MAX,
                     {{p.x, p.x_row, bytes},
                      {p.residual, p.residual_row, bytes},
                      {p.residual_out, p.residual_out_row, bytes},
                      {quantised ? nullptr : p.y, p.y_row, bytes},
                      {p.unquantised, p.unquantised_row, bytes},
                      {p.gamma, 0, bytes},
                      {p.beta, 0, bytes}},
                     beside ? p.residual != nullptr ? "added_cluster" : "rows_cluster" : nullptr);
}

}  // namespace
}  // namespace tilekiln::cuda::norm
