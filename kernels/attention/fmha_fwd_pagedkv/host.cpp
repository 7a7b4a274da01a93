// SPDX-License-Identifier: MIT
// Checks of fmha_fwd_pagedkv's arguments that operator.yaml cannot express, and the plain data that engines take.
#include "kernels/generated/operators/fmha_fwd_pagedkv.h"

#include "kernels/attention/kv_cache.h"
#include "kernels/generated/fmha_fwd_splitkv.h"

namespace tilekiln::op::fmha_fwd_pagedkv {

static bool is_group(const Call& call) { return call.form == Form::group; }

tilekiln_status keys(const Args& args, Call& call) {
  return fmha::check_linear_keys(args, call, is_group(call), args.block_table != nullptr);
}

tilekiln_status scales(const Args& args, Call& call) {
  call.to.out_scale = fmha::scale_data(call.in.out_scale);
  return fmha::check_scales(args, call);
}

tilekiln_status check(const Args& args, fmha::KvCall* to) {
  using Signature = tilekiln::fmha_fwd_pagedkv::Signature;
  Call call(to);
  TILEKILN_TRY(read(args, call));
  fmha::KvProblem& problem = to->problem;
  const fmha::RowLayout layout(is_group(call), call.in.q.ndim, call.exchanged);
  fill_biases(call.in, layout, problem, to->steps);

  const bool fp8 = problem.dtype == fmha::KvDtype::fp8;
  Signature& signature = call.signature;
  signature.sink = problem.features.sink;
  signature.lse = false;
  signature.qscale = fp8 ? decltype(signature.qscale)::pertensor : decltype(signature.qscale)::none;
  to->query.codes = tilekiln::fmha_fwd_pagedkv::pack(signature);
  fmha::set_kv_query(call);
  return TILEKILN_OK;
}

static_assert(tilekiln::fmha_fwd_pagedkv::wants::hdim_q == fmha::want_hdim_q &&
              tilekiln::fmha_fwd_pagedkv::wants::hdim_v == fmha::want_hdim_v &&
              tilekiln::fmha_fwd_pagedkv::sizes::seqlen_q == fmha::size_seqlen_q);
// One engine holds the operators over a cache, so their families number its pipelines and tiles alike.
static_assert(int(tilekiln::fmha_fwd_pagedkv::Pipeline::dlanes) == int(tilekiln::fmha_fwd_splitkv::Pipeline::dlanes) &&
              tilekiln::fmha_fwd_pagedkv::fields::tile_q == tilekiln::fmha_fwd_splitkv::fields::tile_q);

}  // namespace tilekiln::op::fmha_fwd_pagedkv
