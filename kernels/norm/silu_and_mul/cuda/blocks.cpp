// SPDX-License-Identifier: MIT
// The blocks engine of silu_and_mul, and of the family that TILEKILN_FAMILY names.
#include "kernels/norm/cuda/launch.h"

#ifndef TILEKILN_FAMILY
#define TILEKILN_FAMILY _silu_and_mul
#endif

namespace tilekiln::cuda::norm {
namespace {

tilekiln_status launch_gated(const Site& site, const void* problem) {
  const auto& p = *static_cast<const tilekiln::norm::Gated*>(problem);
  const int bytes = bytes_of(p.dtype);
  return launch_rows(site, p, {{p.gate, p.gate_row, bytes}, {p.up, p.up_row, bytes}, {p.y, p.y_row, bytes}});
}

}  // namespace
}  // namespace tilekiln::cuda::norm

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        TILEKILN_FAMILY) = {tilekiln::cuda::norm::launch_gated};
