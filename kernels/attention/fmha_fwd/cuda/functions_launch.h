// SPDX-License-Identifier: MIT
// A checked call of attention with functions from Python becomes the parameters of one launch. Included once, by the
// generated file of an operator's engine.
#pragma once

#include "kernels/attention/fmha_fwd/cuda/addresses.h"
#include "kernels/attention/fmha_fwd/cuda/ampere_launch.h"
#include "kernels/attention/fmha_fwd/cuda/functions_params.h"
#include "kernels/attention/function/engine.h"
#include "kernels/backends/cuda/held.h"

namespace tilekiln::cuda::fmha_fwd {
namespace {

tilekiln_status launch_functions(const Site& site, const void* problem) {
  const auto& p = *static_cast<const fmha::FunctionProblem*>(problem);
  const Kernel* const kernel = find_held([](const Kernel&) { return true; });
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has functions for cuda without their kernel");
  const Build& build = *static_cast<const Build*>(kernel->build);
  FwdKernelProblem of = {p, {}, {}, p.batch, p.seqlen_q, p.seqlen_k, 0};
  of.steps.q = p.q_batch, of.steps.k = p.k_batch, of.steps.v = p.v_batch, of.steps.out = p.out_batch;
  of.steps.lse = p.lse_batch;
  TILEKILN_TRY(check_operands(of, operands_of(of, build)));
  if (p.hdim_q > build.hdim_q || p.hdim_v > build.hdim_v)
    return fail_argument("q", "had head dims %d and %d of v, must have at most %d and %d, of which the kernel is",
                         p.hdim_q, p.hdim_v, build.hdim_q, build.hdim_v);
  if (p.batch == 0 || p.nhead_q == 0 || p.seqlen_q == 0 || p.hdim_v == 0) return TILEKILN_OK;
  FunctionParams params = {};
  TILEKILN_TRY(fill_tiles(of, 2, build, &params.common));
  fill_scores(p, 0, &params.common);
  fill_addresses(of, {}, &params.common);
  fill_operands(p, {p.q_batch, p.k_batch, p.v_batch}, &params);
  params.common.score_scale_log2 = log2_e;
  params.softmax_scale = p.softmax_scale;
  std::copy_n(p.tensor, fmha::kFunctionTensors, params.tensor);
  return launch_tiles(site, kernel, "attention_functions", build, params);
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_fwd
