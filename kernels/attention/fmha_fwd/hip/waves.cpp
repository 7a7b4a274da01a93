// SPDX-License-Identifier: MIT
// The waves engine of fmha_fwd: a checked call becomes the problem of one launch. Compiled with -DTILEKILN_TARGET=<the target's name>.
#include "kernels/attention/fmha_fwd/call.h"
#include "kernels/attention/hip/host.h"
#include "kernels/generated/fmha_fwd.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _fmha_fwd_waves)

namespace tilekiln::hip {
namespace {

using fmha::Dtype;
using fmha::FwdKernelProblem;
using fmha::FwdProblem;

tilekiln_status check_problem(const FwdKernelProblem& of, i64 blocks) {
  const FwdProblem& p = of.problem;
  TILEKILN_TRY(check_steps("q", p.q, p.q_row, p.q_head, of.steps.q, p.hdim_q));
  TILEKILN_TRY(check_steps("k", p.k, p.k_row, p.k_head, of.steps.k, p.hdim_q));
  TILEKILN_TRY(check_steps("v", p.v, p.v_row, p.v_head, of.steps.v, p.hdim_v));
  TILEKILN_TRY(check_steps("out", p.out, p.out_row, p.out_head, of.steps.out, p.hdim_v));
  TILEKILN_TRY(check_scores(p));
  return check_blocks(p.nhead_q, of.batch, blocks);
}

void fill_addresses(const FwdKernelProblem& of, ForwardProblem* to) {
  const FwdProblem& p = of.problem;
  const bool group = p.features.group;
  const auto step = [&](i64 batch) { return group ? 0 : batch; };
  to->q = p.q, to->k = p.k, to->v = p.v, to->out = p.out, to->lse = p.lse, to->bias = p.bias;
  to->q_batch = step(of.steps.q), to->q_head = p.q_head, to->q_row = static_cast<int>(p.q_row);
  to->k_batch = step(of.steps.k), to->k_head = p.k_head, to->k_row = static_cast<int>(p.k_row);
  to->v_batch = step(of.steps.v), to->v_head = p.v_head, to->v_row = static_cast<int>(p.v_row);
  to->out_batch = step(of.steps.out), to->out_head = p.out_head, to->out_row = static_cast<int>(p.out_row);
  to->lse_batch = step(of.steps.lse), to->lse_head = p.lse_head;
  to->bias_batch = step(of.steps.bias), to->bias_head = p.bias_head, to->bias_row = static_cast<int>(p.bias_row);
  to->alibi_slopes = p.alibi_slopes, to->alibi_batch = of.steps.alibi;
  to->sink = p.sink;
  const fmha::DeviceLengths& at = of.lengths;
  const auto either = [](const int* first, const int* second) { return first != nullptr ? first : second; };
  if (group) {
    to->seqstart_q = either(at.seqstart_q, at.cu_seqlens_q);
    to->seqstart_k = either(at.seqstart_k, at.cu_seqlens_k);
  }
  to->seqlens_q = at.seqlen_q, to->seqlens_k = at.seqlen_k;
  to->cu_seqlens_q = either(at.cu_seqlens_q, to->seqstart_q);
  to->cu_seqlens_k = either(at.cu_seqlens_k, to->seqstart_k);
  to->total_q = at.total_q, to->total_k = at.total_k;
}

void fill_scales(const FwdKernelProblem& of, ScaledProblem* to) {
  const FwdProblem& p = of.problem;
  to->q_descale = p.q_descale, to->k_descale = p.k_descale, to->v_descale = p.v_descale;
  to->scale_shift = 30, to->one = 1;
  if (p.features.qscale != fmha::Qscale::blockscale) return;
  static_assert(fmha::scale_block == 1 << 7);
  to->scale_shift = 7;
  to->scale_start_q = of.lengths.scale_start_q, to->scale_start_k = of.lengths.scale_start_k;
  to->q_descale_batch = of.steps.q_descale, to->q_descale_head = p.q_descale_head;
  to->k_descale_batch = of.steps.k_descale, to->k_descale_head = p.k_descale_head;
  to->v_descale_batch = of.steps.v_descale, to->v_descale_head = p.v_descale_head;
}

Format format_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16: return {true, 0, 0};
    case Dtype::fp8bf16: return {false, 1, 0};
    case Dtype::fp8fp32: return {false, 2, 0};
    case Dtype::fp8fnuzbf16: return {false, 1, 1};
    case Dtype::bf8fnuzbf16: return {false, 1, 2};
    default: return {false, 0, 0};
  }
}

// Rounding of P by the instance, an axis of its algorithm, beside the features of the call.
int rounding_of(const Choice& choice) {
  enum { even, up, truncate };  // values of p_rounding
  switch (choice.how->fields[tilekiln::fmha_fwd::fields::p_rounding]) {
    case even: return kRoundEven;
    case up: return kRoundUp;
    default: return 0;
  }
}

tilekiln_status launch_waves(const Site& site, const void* problem) {
  const auto& of = *static_cast<const FwdKernelProblem*>(problem);
  const FwdProblem& p = of.problem;
  const auto instance = tilekiln::fmha_fwd::unpack(site.choice->row->codes, site.choice->row->integers);
  const Dtype dtype = p.features.dtype;
  const Format format = format_of(dtype);
  const Kernel* const fixed = engine_of(site).kernel;
  const Kernel* const kernel = fixed != nullptr
                                   ? fixed
                                   : find_forward("fmha_fwd_", static_cast<i64>(instance.hdim_q),
                                                  static_cast<i64>(instance.hdim_v), format, p.features.dropout);
  if (kernel == nullptr) return fail_kernel("fmha_fwd");
  const auto& build = build_as<ForwardBuild>(*kernel);
  const i64 blocks = (i64(of.seqlen_q) + build.tile_q - 1) / build.tile_q;
  TILEKILN_TRY(check_problem(of, blocks));
  if (of.batch == 0 || p.nhead_q == 0 || of.seqlen_q == 0 || p.hdim_v == 0) return TILEKILN_OK;
  ScaledProblem row = {};  // what other kernels take is its beginning
  fill_scales(of, &row);
  fill_scores(p, &row);
  row.features |= rounding_of(*site.choice);
  fill_addresses(of, &row);
  row.seqlen_q = of.seqlen_q;
  row.seqlen_k = of.seqlen_k;
  row.hdim_q = p.hdim_q;
  row.hdim_v = p.hdim_v;
  row.nhead_q = p.nhead_q;
  row.heads_per_key_head = p.nhead_k > 0 ? p.nhead_q / p.nhead_k : 1;
  row.min_seqlen_q = p.features.skip_min_seqlen_q ? of.min_seqlen_q : 0;
  return launch(site,
                {kernel,
                 "tilekiln_fmha_fwd_waves",
                 {static_cast<unsigned>(blocks), static_cast<unsigned>(p.nhead_q), static_cast<unsigned>(of.batch)},
                 static_cast<unsigned>(build.threads),
                 &row,
                 format.fp8 != 0 ? sizeof(ScaledProblem) : sizeof(ForwardProblem)});
}

}  // namespace
}  // namespace tilekiln::hip

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::hip::launch_waves,
                                                                           tilekiln::hip::any};
