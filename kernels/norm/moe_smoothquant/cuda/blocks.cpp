// SPDX-License-Identifier: MIT
// The blocks engine of moe_smoothquant: its rows of x are those of tokens, which every choice reads.
#include "kernels/norm/cuda/launch.h"

namespace tilekiln::cuda::norm {
namespace {

tilekiln_status launch_experts(const Site& site, const void* problem) {
  const auto& p = *static_cast<const tilekiln::norm::Problem*>(problem);
  return launch_rows(site, p, {{p.x, p.x_row, bytes_of(p.dtype)}});
}

}  // namespace
}  // namespace tilekiln::cuda::norm

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        _moe_smoothquant) = {tilekiln::cuda::norm::launch_experts};
