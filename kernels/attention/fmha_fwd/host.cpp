// SPDX-License-Identifier: MIT
// Checks of fmha_fwd's arguments that operator.yaml cannot express, and the plain data that engines take.
#include "kernels/generated/operators/fmha_fwd.h"

#include <initializer_list>

#include "kernels/attention/fmha_fwd/features.h"
#include "kernels/attention/problem.h"
#include "kernels/runtime/backend.h"

namespace tilekiln::op::fmha_fwd {
namespace {

using fmha::scale_block;
using Scales = decltype(tilekiln::fmha_fwd::Signature::qscale);

bool has_one_element(const Array& array) {
  for (int i = 0; i < array.ndim; ++i) {
    if (array.shape[i] != 1) return false;
  }
  return true;
}

tilekiln_status check_block_scale(const Call& call, const Array& array, int64_t nhead, const char* nhead_name,
                                  int64_t count, const char* count_name) {
  if (call.form == Form::batch) TILEKILN_TRY(check_length(array, 0, "batch", call.to.batch, "the batch of q"));
  TILEKILN_TRY(check_length(array, array.ndim - 2, "nhead", nhead, nhead_name));
  TILEKILN_TRY(check_length(array, array.ndim - 1, "block count", count, count_name));
  return check_last_contiguous(array);
}

// Everything is checked: the problem of the engines, and the steps from sequence to sequence.
void fill(const Args& args, const Call& call) {
  const Arrays& in = call.in;
  const auto& signature = call.signature;
  fmha::FwdProblem& problem = call.to.problem;
  fmha::FwdSteps& steps = call.to.steps;
  const bool group = call.form == Form::group;
  problem.features = fmha::features_of(signature);
  problem.nhead_q = static_cast<int>(call.H);
  problem.nhead_k = static_cast<int>(call.Hk);
  problem.hdim_q = static_cast<int>(call.D);
  problem.hdim_v = static_cast<int>(call.Dv);

  const fmha::RowLayout layout(group, in.q.ndim, call.exchanged);
  problem.q = in.q.data;
  problem.k = in.k.data;
  problem.v = in.v.data;
  problem.out = in.out.data;
  layout.set(in.q, &problem.q_row, &problem.q_head, &steps.q);
  layout.set(in.k, &problem.k_row, &problem.k_head, &steps.k);
  layout.set(in.v, &problem.v_row, &problem.v_head, &steps.v);
  layout.set(in.out, &problem.out_row, &problem.out_head, &steps.out);
  fill_lse(in, layout, problem, steps);
  fill_biases(in, layout, problem, steps);
  fill_randval(in, layout, problem, steps);
  problem.softmax_scale = fmha::scale_of(args, call.D);
  problem.softcap = args.softcap;
  fill_dropout(args, problem);
  fill_mask(args, problem);
  call.to.min_seqlen_q = args.min_seqlen_q;

  if (signature.qscale == Scales::none) return;
  problem.q_descale = reinterpret_cast<const float*>(in.q_descale.data);
  problem.k_descale = reinterpret_cast<const float*>(in.k_descale.data);
  problem.v_descale = reinterpret_cast<const float*>(in.v_descale.data);
  if (signature.qscale == Scales::pertensor) return;
  problem.block_scale_q = problem.block_scale_k = scale_block;
  problem.q_scales = static_cast<int>(in.q_descale.shape[in.q_descale.ndim - 1]);
  problem.k_scales = static_cast<int>(in.k_descale.shape[in.k_descale.ndim - 1]);
  const auto blocks = [&](const Array& array, fmha::i64* head, fmha::i64* step) {
    *head = array.stride[array.ndim - 2];
    *step = group ? 1 : array.stride[0];
  };
  blocks(in.q_descale, &problem.q_descale_head, &steps.q_descale);
  blocks(in.k_descale, &problem.k_descale_head, &steps.k_descale);
  blocks(in.v_descale, &problem.v_descale_head, &steps.v_descale);
}

}  // namespace

// Kinds of the scales, if there are any; their dimensions, but not yet their lengths.
tilekiln_status scale_kinds(const Args&, Call& call) {
  if (!call.in.q_descale.given() && !call.in.k_descale.given() && !call.in.v_descale.given()) return TILEKILN_OK;
  const Array* const all[] = {&call.in.q_descale, &call.in.k_descale, &call.in.v_descale};
  const char* const names[] = {"q_descale", "k_descale", "v_descale"};
  int single = 0;
  for (const Array* array : all) single += array->given() && has_one_element(*array);
  for (int i = 0; i < 3; ++i) {
    if (!all[i]->given())
      return fail_argument(names[i], "was null, must be given: q_descale, k_descale and v_descale go together");
    TILEKILN_TRY(check_dtype(*all[i], TILEKILN_FP32, "fp32"));
  }
  call.signature.qscale = single == 3 ? Scales::pertensor : Scales::blockscale;
  if (single == 3) return TILEKILN_OK;
  for (const Array* array : all) {
    if (array->ndim == (call.form == Form::group ? 2 : 3)) continue;
    return fail_argument(
        array->name, "had %d dimensions, must have one element (pertensor, all three) or be (%snhead, blocks of %d)",
        array->ndim, call.form == Form::group ? "" : "batch, ", scale_block);
  }
  return TILEKILN_OK;
}

tilekiln_status features(const Args& args, Call& call) {
  call.signature.sink = fmha::has_sink(args);
  return TILEKILN_OK;
}

tilekiln_status sequences(const Args& args, Call& call) {
  const bool group = call.form == Form::group, scaled = group && call.signature.qscale == Scales::blockscale;
  const fmha::ScaleBlocks blocks = {scaled ? call.in.q_descale.shape[1] : 0, scaled ? call.in.k_descale.shape[1] : 0};
  return check_sequences_within(call.in, group, group ? call.Tq : call.Sq, group ? call.Tk : call.Sk,
                                scaled ? &blocks : nullptr, args.max_seqlen_q, args.max_seqlen_k, &call.to);
}

tilekiln_status scales(const Args& args, Call& call) {
  const Arrays& in = call.in;
  if (call.signature.qscale == Scales::none) return TILEKILN_OK;
  if (call.signature.qscale == Scales::pertensor) {
    if (args.stream != nullptr || !call.to.backend->host_memory) return TILEKILN_OK;
    for (const Array* array : {&in.q_descale, &in.k_descale, &in.v_descale}) {
      const float value = *reinterpret_cast<const float*>(array->data);
      if (!__builtin_isfinite(value))
        return fail_argument(array->name, "was %g, must be finite", static_cast<double>(value));
    }
    return TILEKILN_OK;
  }
  const bool group = call.form == Form::group;
  const auto blocks = [](int64_t length) { return (length + scale_block - 1) / scale_block; };
  const int64_t blocks_q = group ? in.q_descale.shape[1] : blocks(call.Sq);
  const int64_t blocks_k = group ? in.k_descale.shape[1] : blocks(call.Sk);
  TILEKILN_TRY(check_block_scale(call, in.q_descale, call.H, "the nhead of q", blocks_q, "one per 128 queries"));
  TILEKILN_TRY(check_block_scale(call, in.k_descale, call.Hk, "the nhead of k", blocks_k, "one per 128 keys"));
  return check_block_scale(call, in.v_descale, call.Hk, "the nhead of k", blocks_k,
                           group ? "as k_descale" : "one per 128 keys");
}

tilekiln_status check(const Args& args, fmha::FwdCall* to) {
  Call call(to);
  TILEKILN_TRY(read(args, call));
  fill(args, call);
  to->query.codes = tilekiln::fmha_fwd::pack(call.signature);
  to->query.wants[tilekiln::fmha_fwd::wants::hdim_q] = to->problem.hdim_q;
  to->query.wants[tilekiln::fmha_fwd::wants::hdim_v] = to->problem.hdim_v;
  to->query.sizes[tilekiln::fmha_fwd::sizes::seqlen_q] = to->seqlen_q;
  return TILEKILN_OK;
}

}  // namespace tilekiln::op::fmha_fwd

namespace tilekiln::fmha {

tilekiln_status check_fwd_descales(const FwdProblem& problem) {
  const float* const values[] = {problem.q_descale, problem.k_descale, problem.v_descale};
  const char* const names[] = {"q_descale", "k_descale", "v_descale"};
  for (int i = 0; i < 3; ++i) {
    if (!__builtin_isfinite(*values[i]))
      return fail_argument(names[i], "was %g, must be finite", static_cast<double>(*values[i]));
  }
  return TILEKILN_OK;
}

}  // namespace tilekiln::fmha
