// SPDX-License-Identifier: MIT
// A checked call over rows becomes the parameters of one launch. Included once, by the file of a pipeline, which is compiled with
// -DTILEKILN_TARGET=<the target's name> and as kernels/backends/hip/held.h says.
#pragma once
#include <algorithm>
#include <initializer_list>

#include "kernels/backends/hip/held.h"
#include "kernels/norm/hip/params.h"
#include "kernels/norm/wide.h"

#define TILEKILN_JOIN(a, b, c, d) a##b##c##d
#define TILEKILN_ENGINE(target, family) TILEKILN_JOIN(tilekiln_, target, family, _blocks)

namespace tilekiln::hip::norm {
namespace {

using tilekiln::norm::are_wide;
using tilekiln::norm::ArrayRows;
using tilekiln::norm::bytes_of;

template <class Problem>
tilekiln_status launch_rows(const Site& site, const Problem& p, std::initializer_list<ArrayRows> arrays) {
  if (p.rows == 0) return TILEKILN_OK;
  const Kernel* const kernel =
      find_kernel("", [&](const Kernel& one) { return build_as<Build>(one).dtype == p.dtype; });
  if (kernel == nullptr) return fail_kernel("a kernel over rows");
  const int wide = p.dtype == 0 ? 4 : 8;
  const long long vectors = (static_cast<long long>(p.columns) + wide - 1) / wide;
  int threads = 64;
  while (threads < 512 && static_cast<long long>(threads) * build_as<Build>(*kernel).held < vectors) threads *= 2;
  constexpr long long most_blocks = 1 << 20;
  const int blocks = static_cast<int>(std::min(p.rows, most_blocks));
  const Params<Problem> params = {p, are_wide(p.rows, arrays) ? 1 : 0, threads, blocks};
  return launch(site, {kernel,
                       "tilekiln_rows",
                       {static_cast<unsigned>(blocks), 1, 1},
                       static_cast<unsigned>(threads),
                       &params,
                       sizeof(params)});
}

[[maybe_unused]] tilekiln_status launch_normalise(const Site& site, const void* problem) {
  const auto& p = *static_cast<const tilekiln::norm::Problem*>(problem);
  const int bytes = bytes_of(p.dtype);
  const void* const y = p.y_scale != nullptr ? nullptr : p.y;  // bytes are stored one by one
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
}  // namespace tilekiln::hip::norm
