// SPDX-License-Identifier: MIT
// A call of fmha_mla_decode on its way from arguments to units.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/attention/fmha_mla_decode/engine.h"

namespace tilekiln::mla {

struct Call {
  Problem problem;  // `table` is set when the call runs
  std::vector<int32_t> seqlen_k, table;
  bool paged;
  int num_splits;
};

}  // namespace tilekiln::mla
