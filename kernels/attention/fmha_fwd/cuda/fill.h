// What the rows of all calls of the forward's kernels have in common, over arrays and over KV caches.
#pragma once

#include "kernels/attention/cuda/operands.h"
#include "kernels/attention/fmha_fwd/cuda/row.h"
#include "kernels/backends/philox.h"

namespace tilekiln::cuda::fmha_fwd {

constexpr i64 l2_bytes = 16 << 20;  // keys and values of the heads in flight

// `Problem`: of fmha_fwd or over a KV cache; `features` besides those it says.
template <class Problem>
void fill_scores(const Problem& p, int features, Row* row) {
  row->score_scale_log2 = p.features.softcap ? log2_e : p.softmax_scale * log2_e;
  row->softcap = p.softcap;
  row->softcap_inner = p.features.softcap ? p.softmax_scale / p.softcap : 0;
  row->bias_scale = log2_e / row->score_scale_log2;
  row->left = side_of(p.features.mask, p.window_left);
  row->right = side_of(p.features.mask, p.window_right);
  row->sink_size = p.features.mask && p.window_left >= 0 ? p.sink_size : 0;
  row->features = features | (p.features.mask ? kMask : 0) | (p.features.softcap ? kSoftcap : 0) |
                  (p.features.bias == fmha::Bias::alibi ? kAlibi : 0) |
                  (p.features.bias == fmha::Bias::elementwise ? kBias : 0) | (p.features.dropout ? kDropout : 0) |
                  (p.top_left ? 0 : kBottomRight) | (p.features.mask && p.window_right >= 0 ? kHeavyFirst : 0);
  if (!p.features.dropout) return;
  row->dropout_seed = p.rng_seed;
  row->dropout_offset = p.rng_offset;
  row->dropout_over = 0x10001u * (255u - core::dropout_threshold(p.dropout_p));
  row->keep_scale = 1 / (1 - p.dropout_p);
}

// The largest power of two that divides `heads` and keeps the keys and values of so many in the second-level cache.
inline int head_group(i64 heads, i64 bytes_per_head) {
  i64 group = 1;
  while (heads % (2 * group) == 0 && 2 * group * bytes_per_head <= l2_bytes) group *= 2;
  return static_cast<int>(group);
}

}  // namespace tilekiln::cuda::fmha_fwd
