// What fmha_fwd_pagedkv's operator.yaml cannot say of its arguments, and the plain data that engines take.
#include "tilekiln/generated/operators/fmha_fwd_pagedkv.h"

#include "kernels/attention/kv_cache.h"

namespace tilekiln::op::fmha_fwd_pagedkv {

static bool is_group(const Call& call) { return call.form == Form::group; }

tilekiln_status keys(const Args& args, Call& call) {
  return fmha::check_linear_keys(args, call, is_group(call), args.block_table != nullptr);
}

tilekiln_status scales(const Args& args, Call& call) {
  call.to.out_scale = fmha::scale_data(call.in.out_scale);
  return fmha::check_scales(args, call);
}

}  // namespace tilekiln::op::fmha_fwd_pagedkv

namespace tilekiln::fmha {

tilekiln_status check_pagedkv(const tilekiln_fmha_fwd_pagedkv_args& args, KvCall* to) {
  using Signature = tilekiln::fmha_fwd_pagedkv::Signature;
  to->family = KvFamily::pagedkv;
  op::fmha_fwd_pagedkv::Call call(to);
  TILEKILN_TRY(op::fmha_fwd_pagedkv::read(args, call));
  KvProblem& problem = to->problem;
  const RowLayout layout(op::fmha_fwd_pagedkv::is_group(call), call.in.q.ndim, call.exchanged);
  fill_biases(call.in, layout, problem, to->steps);

  const bool fp8 = problem.dtype == KvDtype::fp8;
  Signature& signature = call.signature;
  signature.sink = problem.features.sink;
  signature.lse = false;
  signature.qscale = fp8 ? decltype(signature.qscale)::pertensor : decltype(signature.qscale)::none;
  to->query.features = tilekiln::fmha_fwd_pagedkv::pack(signature);
  set_kv_query(call);
  return TILEKILN_OK;
}

static_assert(tilekiln::fmha_fwd_pagedkv::wants::hdim_q == want_hdim_q &&
              tilekiln::fmha_fwd_pagedkv::wants::hdim_v == want_hdim_v &&
              tilekiln::fmha_fwd_pagedkv::sizes::seqlen_q == size_seqlen_q);

}  // namespace tilekiln::fmha
