// SPDX-License-Identifier: MIT
// The blocks engine of silu_and_mul on HIP targets.
#include "kernels/norm/hip/launch.h"

namespace tilekiln::hip::norm {
namespace {

tilekiln_status launch_gated(const Site& site, const void* problem) {
  const auto& p = *static_cast<const tilekiln::norm::Gated*>(problem);
  const int bytes = bytes_of(p.dtype);
  return launch_rows(site, p, {{p.gate, p.gate_row, bytes}, {p.up, p.up_row, bytes}, {p.y, p.y_row, bytes}});
}

}  // namespace
}  // namespace tilekiln::hip::norm

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET, _silu_and_mul) = {
    tilekiln::hip::norm::launch_gated, tilekiln::hip::any};
