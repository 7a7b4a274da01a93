// SPDX-License-Identifier: MIT
// Many queries over a KV cache by the kernels of fmha_fwd: what its pipelines have in common. Included once, by the
// file of a pipeline.
#pragma once
#include "kernels/attention/fmha_fwd/cuda/fill.h"
#include "kernels/attention/fmha_fwd_splitkv/cuda/launch.h"

extern "C" __attribute__((weak, visibility("hidden")))
const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET, decode);

namespace tilekiln::cuda::fmha_fwd {
namespace {

using fmha::KvKernelProblem;
using fmha::KvProblem;

const Build& build_of(const Kernel& kernel) { return *static_cast<const Build*>(kernel.build); }

// The smallest that holds the head dims of a call.
const Kernel* find_kernel(const KvProblem& p) {
  const bool fp16 = p.dtype == fmha::KvDtype::fp16;
  const Kernel* best = nullptr;
  cuda::find_kernel("fmha_fwd_", [&](const Kernel& kernel) {
    const Build& build = build_of(kernel);
    const bool fits = (build.fp16 != 0) == fp16 && build.hdim_q >= p.hdim_q && build.hdim_v >= p.hdim_v;
    const auto area = [](const Build& of) { return of.hdim_q * of.hdim_v; };
    if (fits && (best == nullptr || area(build) < area(build_of(*best)))) best = &kernel;
    return false;
  });
  return best;
}

// Step from one page, or sequence, to the next.
i64 k_step(const KvKernelProblem& of) {
  return of.problem.pages.page_size != 0 ? of.problem.pages.k_page : of.problem.features.group ? 0 : of.steps.k;
}
i64 v_step(const KvKernelProblem& of) {
  return of.problem.pages.page_size != 0 ? of.problem.pages.v_page : of.problem.features.group ? 0 : of.steps.v;
}

// Launches the decode kernel for arrays that 16-byte accesses cannot follow; it has no dropout.
tilekiln_status launch_decode(const Site& site, const KvKernelProblem& of) {
  const Engine* const decode = &TILEKILN_ENGINE(TILEKILN_TARGET, decode);
  if (!of.problem.features.dropout && decode != nullptr) return decode->launch(site, &of);
  return fail_argument("q",
                       "and the cache lay as TMA cannot follow, must have head dims and strides that are multiples "
                       "of 8, 0 or more, in whole rows, and a softmax_scale above 0, for dropout on cuda");
}

// Fills tiles as fmha_fwd's, of a call that stores no bytes of dropout.
tilekiln_status fill_tiles(const KvKernelProblem& of, const Build& build, Params* params) {
  if (of.problem.randval != nullptr)
    return fail_argument("randval", "was given, must be null on cuda, where its bytes are not stored: leave it out");
  return fill_tiles(of, 2, build, params);
}

// Sets the places of results and the other inputs of scores; the steps from one sequence to the next as the kernel
// counts them.
void fill_results(const KvKernelProblem& of, i64 out_batch, i64 out_row, i64 lse_batch, i64 bias_batch,
                  Params* params) {
  const KvProblem& p = of.problem;
  params->out = static_cast<uint16_t*>(p.out);
  params->out_batch = out_batch;
  params->out_head = p.out_head;
  params->out_row = out_row;
  params->lse = p.lse;
  params->lse_batch = lse_batch;
  params->lse_head = p.lse_head;
  params->bias = static_cast<const uint16_t*>(p.bias);
  params->bias_batch = bias_batch;
  params->bias_head = p.bias_head;
  params->bias_row = p.bias_row;
  params->alibi_slopes = p.alibi_slopes;
  params->alibi_batch = of.steps.alibi;
  params->sink = p.sink;
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_fwd
