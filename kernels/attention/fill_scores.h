// SPDX-License-Identifier: MIT
// Fields from a checked problem by which a kernel of a device masks, scores and drops: what CUDA and HIP, forward and backward share.
#pragma once
#include "kernels/attention/fwd_engine.h"
#include "kernels/backends/philox.h"

namespace tilekiln::fmha {

constexpr int unbounded = 1 << 29;  // farther than any key; twice it fits an int

// A side of a window as rows have it.
constexpr int side_of(bool mask, int width) { return !mask || width < 0 || width > unbounded ? unbounded : width; }

// Sets the mask (KeyMask of key_range.h); true: it hides a key of some row.
template <class Problem, class Row>
bool fill_mask(const Problem& p, Row* row) {
  row->left = side_of(p.features.mask, p.window_left);
  row->right = side_of(p.features.mask, p.window_right);
  row->sink_keys = p.features.mask ? p.sink_keys : 0;
  return p.features.mask && (p.window_left >= 0 || p.window_right >= 0);
}

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
