// SPDX-License-Identifier: MIT
// Checks of fmha_fwd_splitkv's arguments that operator.yaml cannot express, and the plain data that engines take.
#include "kernels/generated/operators/fmha_fwd_splitkv.h"

#include "kernels/attention/kv_cache.h"
#include "kernels/generated/fmha_fwd_splitkv_combine.h"

namespace tilekiln::op::fmha_fwd_splitkv {

static bool is_group(const Call& call) { return call.form == Form::group || call.form == Form::group_paged; }

tilekiln_status keys(const Args& args, Call& call) {
  return fmha::check_linear_keys(args, call, is_group(call), args.block_table != nullptr);
}

tilekiln_status scales(const Args& args, Call& call) {
  call.to.out_scale = fmha::scale_data(call.in.out_scale);
  return fmha::check_scales(args, call);
}

tilekiln_status check(const Args& args, fmha::KvCall* to) {
  using Signature = tilekiln::fmha_fwd_splitkv::Signature;
  Call call(to);
  TILEKILN_TRY(read(args, call));
  fmha::KvProblem& problem = to->problem;
  const fmha::RowLayout layout(is_group(call), call.in.q.ndim, call.exchanged);
  problem.features.lse = call.in.lse.given();
  fill_lse(call.in, layout, problem, to->steps);
  fill_biases(call.in, layout, problem, to->steps);
  to->num_splits = args.num_splits;

  const bool fp8 = problem.dtype == fmha::KvDtype::fp8;
  Signature& signature = call.signature;
  signature.sink = problem.features.sink;
  signature.lse = true;
  signature.qscale = fp8 ? decltype(signature.qscale)::pertensor : decltype(signature.qscale)::none;
  to->query.codes = tilekiln::fmha_fwd_splitkv::pack(signature);
  fmha::set_kv_query(call);

  namespace combine = tilekiln::fmha_fwd_splitkv_combine;
  static_assert(combine::wants::hdim_v == 0);
  combine::Signature second = {};
  second.dtype = fmha::dtype_as<combine::Dtype>(problem.dtype);
  second.mode = layout.group ? combine::Mode::group : combine::Mode::batch;
  second.qscale = fp8 ? combine::Qscale::pertensor : combine::Qscale::none;
  second.lse = problem.features.lse;
  to->combine_query = {combine::pack(second), {problem.hdim_v}, {}, to->device};
  return TILEKILN_OK;
}

static_assert(tilekiln::fmha_fwd_splitkv::wants::hdim_q == fmha::want_hdim_q &&
              tilekiln::fmha_fwd_splitkv::wants::hdim_v == fmha::want_hdim_v &&
              tilekiln::fmha_fwd_splitkv::sizes::seqlen_q == fmha::size_seqlen_q);

}  // namespace tilekiln::op::fmha_fwd_splitkv
