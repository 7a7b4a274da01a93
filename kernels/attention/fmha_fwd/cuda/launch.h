// SPDX-License-Identifier: MIT
// Parameters of the kernels from a checked call of fmha_fwd: what the pipelines have in common. Included once, by the
// file of a pipeline, which is compiled with -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#pragma once
#include <initializer_list>

#include "kernels/attention/fmha_fwd/call.h"
#include "kernels/attention/fmha_fwd/cuda/fill.h"
#include "kernels/backends/cuda/held.h"
#include "kernels/generated/fmha_fwd.h"

#define TILEKILN_JOIN(a, b, c, d) a##b##c##d
#define TILEKILN_ENGINE(target, pipeline) TILEKILN_JOIN(tilekiln_, target, _fmha_fwd_, pipeline)

namespace tilekiln::cuda::fmha_fwd {
namespace {

using fmha::Dtype;
using fmha::FwdKernelProblem;
using fmha::FwdProblem;

const Build& build_of(const Kernel& kernel) { return *static_cast<const Build*>(kernel.build); }

Dtype dtype_of(const Build& build) {
  if (build.fp8 != 0) return build.fp32 != 0 ? Dtype::fp8fp32 : Dtype::fp8bf16;
  return build.fp16 != 0 ? Dtype::fp16 : Dtype::bf16;
}

bool is_fp8(Dtype dtype) { return dtype == Dtype::fp8bf16 || dtype == Dtype::fp8fp32; }

// The smallest kernel of the dtype that holds the instance's head dims; null: the library has none.
const Kernel* find_kernel(const Choice& choice, Dtype dtype) {
  const auto instance = tilekiln::fmha_fwd::unpack(choice.row->codes, choice.row->integers);
  const Kernel* best = nullptr;
  for (const Kernel* kernel : held) {
    if (kernel == nullptr || dtype_of(build_of(*kernel)) != dtype) continue;
    const Build& build = build_of(*kernel);
    if (build.hdim_q < static_cast<int>(instance.hdim_q) || build.hdim_v < static_cast<int>(instance.hdim_v)) continue;
    const auto area = [](const Build& of) { return of.hdim_q * of.hdim_v; };
    if (best == nullptr || area(build) < area(build_of(*best))) best = kernel;
  }
  return best;
}

// q, k and v.
struct Operands { Operand q, k, v; };

Operands operands_of(const FwdKernelProblem& of, const Build& build) {
  const FwdProblem& p = of.problem;
  const int bytes = is_fp8(p.features.dtype) ? 1 : 2;
  return {{"q", p.q, p.q_row, p.q_head, of.steps.q, p.hdim_q, p.nhead_q, of.seqlen_q,
           p.features.dropout ? dropped_box : build.query_box, bytes},
          {"k", p.k, p.k_row, p.k_head, of.steps.k, p.hdim_q, p.nhead_k, of.seqlen_k, build.keys, bytes},
          {"v", p.v, p.v_row, p.v_head, of.steps.v, p.hdim_v, p.nhead_k, of.seqlen_k, build.keys, bytes}};
}

tilekiln_status check_problem(const FwdKernelProblem& of, const Operands& operands) {
  const FwdProblem& p = of.problem;
  for (const Operand* operand : {&operands.q, &operands.k, &operands.v}) TILEKILN_TRY(check_operand(*operand));
  const int bytes = p.features.dtype == Dtype::fp8fp32 ? 4 : 2;
  TILEKILN_TRY(
      check_operand({"out", p.out, p.out_row, p.out_head, of.steps.out, p.hdim_v, p.nhead_q, of.seqlen_q, 0, bytes}));
  if (p.randval != nullptr)
    return fail_argument("randval", "was given, must be null on cuda, where its bytes are not stored: leave it out");
  if (p.softmax_scale > 0) return TILEKILN_OK;
  return fail_argument("softmax_scale", "was %g, must be above 0 on cuda", static_cast<double>(p.softmax_scale));
}

void fill_scales(const FwdKernelProblem& of, Params* params) {
  const FwdProblem& p = of.problem;
  if (p.features.qscale == fmha::Qscale::none) return;
  params->q_descale = p.q_descale;
  params->k_descale = p.k_descale;
  params->v_descale = p.v_descale;
  if (p.features.qscale == fmha::Qscale::pertensor) return;
  params->features |= kBlockScales;
  params->q_scales = p.q_scales;
  params->k_scales = p.k_scales;
  params->q_scale_head = p.q_descale_head;
  params->k_scale_head = p.k_descale_head;
  params->v_scale_head = p.v_descale_head;
  params->scale_start_q = of.lengths.scale_start_q;
  params->scale_start_k = of.lengths.scale_start_k;
  if (p.features.group) return;
  params->q_scale_batch = of.steps.q_descale;
  params->k_scale_batch = of.steps.k_descale;
  params->v_scale_batch = of.steps.v_descale;
}

void fill_addresses(const FwdKernelProblem& of, const Packing& packing, Params* params) {
  const FwdProblem& p = of.problem;
  const auto batch_step = [&](i64 step, i64 row_step) { return packing.step_q(p.features.group, step, row_step); };
  params->out = p.out;
  params->out_batch = batch_step(of.steps.out, p.out_row);
  params->out_head = p.out_head;
  params->out_row = p.out_row;
  params->lse = p.lse;
  params->lse_batch = batch_step(of.steps.lse, 1);
  params->lse_head = p.lse_head;
  params->bias = static_cast<const uint16_t*>(p.bias);
  params->bias_batch = batch_step(of.steps.bias, p.bias_row);
  params->bias_head = p.bias_head;
  params->bias_row = p.bias_row;
  params->alibi_slopes = p.alibi_slopes;
  params->alibi_batch = of.steps.alibi;
  params->sink = p.sink;
  params->min_seqlen_q = of.min_seqlen_q;
  fill_scales(of, params);
  if (!packing.packed) return;
  params->features |= kGroup;
  fill_lengths(of.lengths, p.features.group, packing, params);
  params->total_q = of.lengths.total_q;
  params->total_k = of.lengths.total_k;
}

tilekiln_status fail_kernel() {
  return fail(TILEKILN_INTERNAL, "the library has a row of fmha_fwd for cuda without its kernel");
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_fwd
