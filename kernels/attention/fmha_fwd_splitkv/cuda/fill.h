// SPDX-License-Identifier: MIT
// Parameters of decode's kernels, for both stages.
#pragma once
#include "kernels/attention/fmha_fwd_splitkv/cuda/launch.h"
#include "kernels/attention/fmha_fwd_splitkv/cuda/params.h"

namespace tilekiln::cuda::fmha_decode {
namespace {

using fmha::KvKernelProblem;
using fmha::KvProblem;

const Build& build_of(const Kernel& kernel) { return *static_cast<const Build*>(kernel.build); }

// The smallest that holds the head dims of a call.
const Kernel* find_kernel(const KvProblem& p) {
  const bool fp16 = p.dtype == fmha::KvDtype::fp16, bytes = cache_bytes(p.dtype) == 1;
  const int hdim = p.hdim_q > p.hdim_v ? p.hdim_q : p.hdim_v;
  const Kernel* best = nullptr;
  cuda::find_kernel("fmha_decode", [&](const Kernel& kernel) {
    const Build& build = build_of(kernel);
    const bool fits = (build.fp16 != 0) == fp16 && (build.bytes != 0) == bytes && build.hdim >= hdim;
    if (fits && (best == nullptr || build.hdim < build_of(*best).hdim)) best = &kernel;
    return false;
  });
  return best;
}

void fill_params(const KvKernelProblem& of, Params* params) {
  const KvProblem& p = of.problem;
  fill_places(of.places, p.pages, params);
  params->part_out = of.part_out, params->part_lse = of.part_lse;
  params->out = p.out, params->lse = p.lse;
  const auto batch_step = [&](i64 step) { return p.features.group ? 0 : step; };
  params->out_batch = batch_step(of.steps.out), params->out_head = p.out_head, params->out_row = p.out_row;
  params->lse_batch = batch_step(of.steps.lse), params->lse_head = p.lse_head;
  params->seqlen_q_most = of.seqlen_q, params->seqlen_k_most = of.seqlen_k;
  params->batch = of.batch, params->nhead_q = p.nhead_q, params->nhead_k = p.nhead_k;
  params->hdim_q = p.hdim_q, params->hdim_v = p.hdim_v, params->splits = of.num_splits;
  if (p.dtype == fmha::KvDtype::fp8) params->features |= kBytesOut;
  params->out_scale = of.out_scale;
}

// Launches the second stage: out and LSE from the parts that decode left.
tilekiln_status combine_parts(const Site& site, const KvKernelProblem& of) {
  const Kernel* const kernel = find_kernel(of.problem);
  if (kernel == nullptr) return fail_kernel("fmha_decode");
  const i64 blocks = i64(of.batch) * of.seqlen_q * of.problem.nhead_q;
  if (blocks > INT32_MAX)
    return fail_argument("q", "had %lld rows of all heads, must have fewer than 2^31 with splits on cuda", blocks);
  Params params = {};
  fill_params(of, &params);
  const Build& build = build_of(*kernel);
  const auto threads = static_cast<unsigned>(threads_of_combine(build.hdim));
  return launch(site, {kernel,
                       "fmha_decode_combine",
                       {static_cast<unsigned>(blocks), 1, 1},
                       threads,
                       0,
                       &params,
                       false,
                       build.early != 0});
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_decode
