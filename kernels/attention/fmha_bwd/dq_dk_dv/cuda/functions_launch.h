// SPDX-License-Identifier: MIT
// A stage of the backward of attention with functions from Python becomes a launch of the kernels by mma.sync. Included
// once, by the generated file of an operator's engine.
#pragma once

#include <algorithm>

#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/ampere_params.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/launch.h"
#include "kernels/attention/function/engine.h"

namespace tilekiln::cuda::fmha_bwd {
namespace {

template <Dtype dtype> tilekiln_status launch_functions(const Site& site, const void* problem) {
  const auto& all = *static_cast<const fmha::FunctionBwdKernelProblem*>(problem);
  BwdKernelProblem of = all.of;
  of.problem.features.dtype = dtype;
  using R = fmha::FunctionBwdParams<AmpereParams>;
  const auto packing_of = [&](const Operands&, Packing* packing) {
    *packing = {false, of.seqlen_q, of.seqlen_k};
    return TILEKILN_OK;
  };
  const auto fill_operands = [&](const Operands&, const Packing&, R* params) {
    fill_rows(of.problem, {of.steps.q, of.steps.k, of.steps.v}, params);
    params->softmax_scale = of.problem.softmax_scale;
    std::copy_n(all.tensor, fmha::kFunctionTensors, params->tensor);
    std::copy_n(all.gradient, fmha::kFunctionTensors, params->gradient);
    return TILEKILN_OK;
  };
  return launch_stage<R>(
      site, of, "fmha_bwd_ampere", [](R* params) { return &params->common; }, packing_of, fill_operands);
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_bwd
