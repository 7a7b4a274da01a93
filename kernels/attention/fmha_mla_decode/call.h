// SPDX-License-Identifier: MIT
// A call of fmha_mla_decode on its way from arguments to units.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/attention/fmha_mla_decode/engine.h"

namespace tilekiln::mla {

struct Call {
  static constexpr bool launches_kernels = true;
  Problem problem;  // `table` is set when the call runs; where kernels read it, before
  std::vector<int32_t> seqlen_k, table;
  bool paged;
  int num_splits;
  const int* device_seqlen_k;  // where kernels read it; null: all sequences have `room` keys
  int room, pages;             // the keys that a sequence may have; of the pool
};

// A call for kernels, which read the index arrays themselves.
struct Launched {
  static constexpr bool launches_kernels = true;
  Problem problem;
  const int* seqlen_k;
  int room, pages, num_splits;
};

}  // namespace tilekiln::mla
