// SPDX-License-Identifier: MIT
// Operands of a checked call of the forward: what a kernel of CUDA asks of them, and where they lie. Included once, by
// the file of an engine.
#pragma once
#include <initializer_list>

#include "kernels/attention/fmha_fwd/cuda/fill.h"

namespace tilekiln::cuda::fmha_fwd {
namespace {

using fmha::Dtype;
using fmha::FwdKernelProblem;
using fmha::FwdProblem;

bool is_fp8(Dtype dtype) { return dtype == Dtype::fp8bf16 || dtype == Dtype::fp8fp32; }

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

tilekiln_status check_operands(const FwdKernelProblem& of, const Operands& operands) {
  const FwdProblem& p = of.problem;
  for (const Operand* operand : {&operands.q, &operands.k, &operands.v}) TILEKILN_TRY(check_operand(*operand));
  const int bytes = p.features.dtype == Dtype::fp8fp32 ? 4 : 2;
  return check_operand({"out", p.out, p.out_row, p.out_head, of.steps.out, p.hdim_v, p.nhead_q, of.seqlen_q, 0, bytes});
}

inline tilekiln_status check_problem(const FwdKernelProblem& of, const Operands& operands) {
  const FwdProblem& p = of.problem;
  TILEKILN_TRY(check_operands(of, operands));
  if (p.randval != nullptr)
    return fail_argument("randval", "was given, must be null on cuda, where its bytes are not stored: leave it out");
  if (p.softmax_scale > 0) return TILEKILN_OK;
  return fail_argument("softmax_scale", "was %g, must be above 0 on cuda", static_cast<double>(p.softmax_scale));
}

inline tilekiln_status fill_maps(const FwdKernelProblem& of, const Operands& operands, bool packed, int device,
                                 Params* params) {
  const Dtype kind = of.problem.features.dtype;
  const int dtype = is_fp8(kind) ? TILEKILN_FP8 : kind == Dtype::fp16 ? TILEKILN_FP16 : TILEKILN_BF16;
  const void* const other = of.problem.q;  // nothing is read of an array without rows, but the driver wants an address
  TILEKILN_TRY(encode_operand(operands.q, packed, dtype, of.batch, other, device, &params->q));
  TILEKILN_TRY(encode_operand(operands.k, packed, dtype, of.batch, other, device, &params->k));
  return encode_operand(operands.v, packed, dtype, of.batch, other, device, &params->v);
}

// Launches Hopper's kernel, whose CTAs deal tiles out among themselves; its arguments may go on behind `params`.
inline tilekiln_status launch_dealt(const Site& site, const Kernel* kernel, const Build& build, Params* params) {
  TILEKILN_TRY(zero_word(site.device.id, site.stream, &params->next_tile));
  const int workers = facts(site.device.id)->multiprocessors;
  return launch(site, {kernel,
                       "fmha_fwd_hopper",
                       {static_cast<unsigned>(std::min(params->tiles, workers)), 1, 1},
                       static_cast<unsigned>(build.threads),
                       static_cast<unsigned>(build.shared_bytes),
                       params,
                       false});
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

}  // namespace
}  // namespace tilekiln::cuda::fmha_fwd
