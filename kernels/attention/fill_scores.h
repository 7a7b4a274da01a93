// SPDX-License-Identifier: MIT
// Fields from a checked problem by which a kernel of a device masks, scores and drops: what CUDA and HIP, forward and backward share.
#pragma once
#include "kernels/attention/fwd_engine.h"
#include "kernels/backends/philox.h"

namespace tilekiln::fmha {

// Sets the seed and offset of the random bytes and the factor of kept weights; true: there is dropout.
template <class Problem, class Row>
bool fill_dropout(const Problem& p, Row* row) {
  if (!p.features.dropout) return false;
  row->dropout_seed = p.rng_seed;
  row->dropout_offset = p.rng_offset;
  row->keep_scale = 1 / (1 - p.dropout_p);
  return true;
}

}  // namespace tilekiln::fmha
