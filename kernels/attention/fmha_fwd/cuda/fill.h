// SPDX-License-Identifier: MIT
// Common fields of the parameters of all calls of the forward's kernels, over arrays and over KV caches.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/attention/cuda/operands.h"
#include "kernels/attention/fmha_fwd/cuda/params.h"

namespace tilekiln::cuda::fmha_fwd {

constexpr int dropped_box = 8;      // rows of one copy of q with dropout: the kernel has them in another order
constexpr i64 l2_bytes = 16 << 20;  // keys and values of the heads in flight

// `Problem`: of fmha_fwd or over a KV cache; `features` besides those it says.
template <class Problem>
void fill_scores(const Problem& p, int features, Params* params) {
  cuda::fill_scores(p, params);
  if (p.features.softcap) {
    params->score_scale_log2 = p.softcap * log2_e;
    params->bias_scale = log2_e / params->score_scale_log2;
  }
  // Weights are between 2^-126 and 2^(2 a - 126) or 1, a = score_scale_log2: what keeps them in range is known
  // beforehand.
  const bool alone = p.features.softcap && p.features.bias == fmha::Bias::none && !p.features.dropout;
  if (alone && params->score_scale_log2 <= 100)
    params->capped_top = std::floor(std::min(params->score_scale_log2 + 1, 126 - params->score_scale_log2));
  params->features = features | (p.features.mask ? kMask : 0) | (p.features.softcap ? kSoftcap : 0) |
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

// Number and order of the tiles of `build`. `KernelProblem`: of fmha_fwd or over a KV cache; `bytes`: of an element
// of k and v.
template <class KernelProblem>
tilekiln_status fill_tiles(const KernelProblem& of, int bytes, const Build& build, Params* params) {
  const auto& p = of.problem;
  const i64 blocks = (of.seqlen_q + build.query_rows - 1) / build.query_rows, tiles = blocks * p.nhead_q * of.batch;
  if (tiles > INT32_MAX / 2)
    return fail_argument("q", "had %lld blocks of %d queries over all heads, must have fewer than 2^30 on cuda", tiles,
                         build.query_rows);
  params->batch = of.batch;
  params->nhead_q = p.nhead_q;
  params->nhead_k = p.nhead_k;
  params->seqlen_q_most = of.seqlen_q;
  params->seqlen_k_most = of.seqlen_k;
  params->hdim_v = p.hdim_v;
  params->query_blocks = static_cast<int>(blocks);
  params->tiles = static_cast<int>(tiles);
  params->head_group = head_group(i64(of.batch) * p.nhead_q, i64(of.seqlen_k) * bytes * (p.hdim_q + p.hdim_v));
  return TILEKILN_OK;
}

}  // namespace tilekiln::cuda::fmha_fwd
