// What the rows of all calls of the forward's kernels have in common, over arrays and over KV caches.
#pragma once

#include "kernels/attention/cuda/operands.h"
#include "kernels/attention/fmha_fwd/cuda/row.h"

namespace tilekiln::cuda::fmha_fwd {

constexpr i64 l2_bytes = 16 << 20;  // keys and values of the heads in flight

// `Problem`: of fmha_fwd or over a KV cache; `features` besides those it says.
template <class Problem>
void fill_scores(const Problem& p, int features, Row* row) {
  cuda::fill_scores(p, row);
  row->features = features | (p.features.mask ? kMask : 0) | (p.features.softcap ? kSoftcap : 0) |
                  (p.features.bias == fmha::Bias::alibi ? kAlibi : 0) |
                  (p.features.bias == fmha::Bias::elementwise ? kBias : 0) | (p.features.dropout ? kDropout : 0) |
                  (p.top_left ? 0 : kBottomRight) | (p.features.mask && p.window_right >= 0 ? kHeavyFirst : 0);
}

// The largest power of two that divides `heads` and keeps the keys and values of so many in the second-level cache.
inline int head_group(i64 heads, i64 bytes_per_head) {
  i64 group = 1;
  while (heads % (2 * group) == 0 && 2 * group * bytes_per_head <= l2_bytes) group *= 2;
  return static_cast<int>(group);
}

}  // namespace tilekiln::cuda::fmha_fwd
