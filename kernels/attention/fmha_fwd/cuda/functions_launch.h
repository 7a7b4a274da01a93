// SPDX-License-Identifier: MIT
// A checked call of attention with functions from Python becomes the parameters of one launch. Included once, by the
// generated file of an operator's engine.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/addresses.h"
#include "kernels/attention/fmha_fwd/cuda/ampere_launch.h"
#include "kernels/attention/function/engine.h"
#include "kernels/backends/cuda/held.h"

namespace tilekiln::cuda::fmha_fwd {
namespace {

// The kernel of the operator for a call; null: nothing is to be done. kScores: it has a score function, which makes
// logits, so that score_scale_log2 is log2(e).
template <bool kScores, class Params>
tilekiln_status fill_functions(const fmha::FunctionProblem& p, FwdKernelProblem* of, const Kernel** kernel,
                               fmha::FunctionParams<Params>* params, fmha_fwd::Params* common) {
  *kernel = find_held([](const Kernel&) { return true; });
  if (*kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has functions for cuda without their kernel");
  const Build& build = *static_cast<const Build*>((*kernel)->build);
  of->steps.q = p.q_batch, of->steps.k = p.k_batch, of->steps.v = p.v_batch, of->steps.out = p.out_batch;
  of->steps.lse = p.lse_batch;
  TILEKILN_TRY(check_operands(*of, operands_of(*of, build)));
  if (p.hdim_q > build.hdim_q || p.hdim_v > build.hdim_v)
    return fail_argument("q", "had head dims %d and %d of v, must have at most %d and %d, of which the kernel is",
                         p.hdim_q, p.hdim_v, build.hdim_q, build.hdim_v);
  if (!kScores && !(p.softmax_scale > 0))
    return fail_argument("softmax_scale", "was %g, must be above 0 on cuda without a score function",
                         static_cast<double>(p.softmax_scale));
  if (p.batch == 0 || p.nhead_q == 0 || p.seqlen_q == 0 || p.hdim_v == 0) {
    *kernel = nullptr;
    return TILEKILN_OK;
  }
  TILEKILN_TRY(fill_tiles(*of, 2, build, common));
  fill_scores(p, 0, common);
  fill_addresses(*of, {}, common);
  if (kScores) common->score_scale_log2 = log2_e;
  params->softmax_scale = p.softmax_scale;
  std::copy_n(p.tensor, fmha::kFunctionTensors, params->tensor);
  return TILEKILN_OK;
}

template <bool kScores, bool> tilekiln_status launch_functions_ampere(const Site& site, const void* problem) {
  const auto& p = *static_cast<const fmha::FunctionProblem*>(problem);
  FwdKernelProblem of = {p, {}, {}, p.batch, p.seqlen_q, p.seqlen_k, 0};
  const Kernel* kernel = nullptr;
  fmha::FunctionParams<AmpereParams> params = {};
  TILEKILN_TRY(fill_functions<kScores>(p, &of, &kernel, &params, &params.common));
  if (kernel == nullptr) return TILEKILN_OK;
  fill_operands(p, {p.q_batch, p.k_batch, p.v_batch}, &params);
  return launch_tiles(site, kernel, "attention_functions", *static_cast<const Build*>(kernel->build), params);
}

template <bool kScores, bool kMasks> tilekiln_status launch_functions_hopper(const Site& site, const void* problem) {
  const auto& p = *static_cast<const fmha::FunctionProblem*>(problem);
  FwdKernelProblem of = {p, {}, {}, p.batch, p.seqlen_q, p.seqlen_k, 0};
  const Kernel* kernel = nullptr;
  fmha::FunctionParams<Params> params = {};
  TILEKILN_TRY(fill_functions<kScores>(p, &of, &kernel, &params, &params));
  if (kernel == nullptr) return TILEKILN_OK;
  const Build& build = *static_cast<const Build*>(kernel->build);
  if (p.seqlen_k / build.keys >= kMostKeyTiles)
    return fail_argument("k", "had %d keys, must have fewer than %d on cuda under functions", p.seqlen_k,
                         kMostKeyTiles * build.keys);
  params.features |= kHeavyFirst;  // as a causal mask wants it; to others it is alike
  TILEKILN_TRY(fill_maps(of, operands_of(of, build), false, site.device.id, &params));
  LaunchMemory memory;
  const i64 words = (p.seqlen_k + i64(32) * build.keys - 1) / (i64(32) * build.keys), warps = words * params.tiles;
  if (kMasks && words > 0) {
    TILEKILN_TRY(memory.take(site, static_cast<size_t>((warps + 1) / 2 * 16), 0));
    params.shown = static_cast<unsigned long long*>(memory.data());
    const auto blocks = static_cast<unsigned>((warps + 3) / 4);
    TILEKILN_TRY(launch(site, {kernel, "key_maps", {blocks, 1, 1}, 128, 0, &params, false}));
  }
  return launch_dealt(site, kernel, build, &params);
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_fwd
