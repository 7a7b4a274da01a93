// SPDX-License-Identifier: MIT
// Checks of fmha_batch_prefill's arguments that operator.yaml cannot express, and the plain data that engines take.
#include "kernels/generated/operators/fmha_batch_prefill.h"

#include <initializer_list>

#include "kernels/attention/kv_cache.h"
#include "kernels/generated/fmha_fwd_splitkv.h"

namespace tilekiln::op::fmha_batch_prefill {
namespace {

using fmha::KvDtype;
using fmha::KvLayout;

KvDtype dtype_of(const Arrays& in) {
  return in.q.dtype == TILEKILN_FP8    ? KvDtype::fp8bf16
         : in.q.dtype == TILEKILN_FP16 ? KvDtype::fp16
         : in.k.dtype == TILEKILN_BF16 ? KvDtype::bf16
         : in.k.dtype == TILEKILN_FP8  ? KvDtype::bf16_fp8
                                       : KvDtype::bf16_bf8;
}

}  // namespace

// The shapes that a vectorized pool must have, and how the pool lies.
tilekiln_status pool(const Args&, Call& call) {
  const Array &k = call.in.k, &v = call.in.v;
  fmha::KvProblem& problem = call.to.problem;
  if (call.form == Form::tokens) call.Ps = 1;
  if (call.form == Form::vectors) {
    const int64_t vec = 16 / dtype_bytes(k.dtype);
    for (const Array* array : {&k, &v}) {
      TILEKILN_TRY(check_length(*array, 4, "vec", vec, "the elements in 16 bytes"));
      if (array->shape[3] > 1 && !array->empty() && array->stride[3] != vec) {
        return fail_argument(array->name,
                             "the stride of dimension 3 was %lld, must be %lld: its vectors lie side by side",
                             static_cast<long long>(array->stride[3]), static_cast<long long>(vec));
      }
    }
    if (call.D % vec != 0) {
      return fail_argument("q", "hdim was %lld, must be a multiple of %lld with a vectorized cache",
                           static_cast<long long>(call.D), static_cast<long long>(vec));
    }
    if (call.Ps % vec != 0) {
      return fail_argument("k", "page size was %lld, must be a multiple of %lld in a vectorized cache",
                           static_cast<long long>(call.Ps), static_cast<long long>(vec));
    }
    TILEKILN_TRY(check_length(k, 2, "hdim / vec", call.D / vec, "the hdim of q by the elements in 16 bytes"));
    TILEKILN_TRY(
        check_length(v, 2, "page size / vec", call.Ps / vec, "the page size of k by the elements in 16 bytes"));
    problem.k_head = k.stride[1];
    problem.v_head = v.stride[1];
    problem.pages.k_chunk = k.stride[2];
    problem.pages.v_chunk = v.stride[2];
  } else {
    const int head = k.ndim - 2;
    problem.k_head = k.stride[head];
    problem.v_head = v.stride[head];
    problem.k_row = call.form == Form::pages ? k.stride[1] : 0;
    problem.v_row = call.form == Form::pages ? v.stride[1] : 0;
  }
  fmha::set_pages(problem, call.form == Form::vectors ? KvLayout::vectorized : KvLayout::linear, call.Ps, k.stride[0],
                  v.stride[0]);
  return TILEKILN_OK;
}

tilekiln_status keys(const Args& args, Call& call) {
  fmha::fill_queries(args, call, true, false, dtype_of(call.in));
  call.to.problem.features.dropout = call.signature.dropout;
  return fmha::check_prefill_keys(call.in, {true, call.P, call.Ps, 0, 0}, call.Tq,
                                  {args.max_seqlen_q, args.max_seqlen_k}, &call.to);
}

tilekiln_status block_scales(const Args&, Call& call) {
  const Array& scale = call.in.kv_block_descale;
  fmha::KvProblem& problem = call.to.problem;
  if (!scale.given()) return TILEKILN_OK;
  for (const Array* array : {&call.in.k_descale, &call.in.v_descale}) {
    if (array->given())
      return fail_argument(array->name, "was given with kv_block_descale, must be alone: both scale the cache");
  }
  constexpr int block = 128;  // as the rule kv_blockscale_of_large_pages says
  if (call.Ps % block != 0) {
    return fail_argument(scale.name, "was given with pages of %lld keys, must be of pages of a multiple of %d",
                         static_cast<long long>(call.Ps), block);
  }
  problem.k_page_scale = reinterpret_cast<const float*>(scale.data);
  problem.v_page_scale = problem.k_page_scale + scale.stride[2];
  problem.page_scale_page = scale.stride[0];
  problem.page_scale_head = scale.stride[1];
  return TILEKILN_OK;
}

tilekiln_status scales(const Args& args, Call& call) { return fmha::check_scales(args, call); }

tilekiln_status check(const Args& args, fmha::KvCall* to) {
  namespace family = tilekiln::fmha_batch_prefill;
  Call call(to);
  TILEKILN_TRY(read(args, call));
  fmha::KvProblem& problem = to->problem;
  const fmha::RowLayout layout(true, 3, false);
  problem.features.lse = call.in.lse.given();
  fill_lse(call.in, layout, problem, to->steps);
  fill_biases(call.in, layout, problem, to->steps);
  fill_randval(call.in, layout, problem, to->steps);
  fmha::fill_dropout(args, problem);

  family::Signature& signature = call.signature;
  signature.kv_dtype = problem.dtype == fmha::KvDtype::bf16_fp8   ? family::KvDtype::fp8
                       : problem.dtype == fmha::KvDtype::bf16_bf8 ? family::KvDtype::bf8
                                                                  : family::KvDtype::same;
  signature.mode = family::Mode::group;
  // Classes: a page of a key tile or more is served as 1024, a smaller one as 16.
  constexpr int key_tile = 64;
  signature.page_size = call.Ps == 1         ? family::PageSize::_1
                        : call.Ps < key_tile ? family::PageSize::_16
                                             : family::PageSize::_1024;
  signature.layout = call.form == Form::vectors ? family::Layout::vectorized : family::Layout::linear;
  signature.sink = problem.features.sink;
  signature.qscale = call.in.kv_block_descale.given()                ? family::Qscale::kv_blockscale
                     : problem.features.qscale == fmha::Qscale::none ? family::Qscale::none
                                                                     : family::Qscale::pertensor;
  to->query.codes = family::pack(signature);
  fmha::set_kv_query(call);
  to->query.sizes[fmha::size_cache_bytes] =
      fmha::bytes_between(call.P, call.in.k.stride[0], dtype_bytes(call.in.k.dtype));
  to->query.sizes[fmha::size_page_tokens] = call.Ps;
  return TILEKILN_OK;
}

static_assert(tilekiln::fmha_batch_prefill::sizes::cache_bytes == fmha::size_cache_bytes &&
              tilekiln::fmha_batch_prefill::sizes::page_tokens == fmha::size_page_tokens &&
              tilekiln::fmha_batch_prefill::sizes::seqlen_q == fmha::size_seqlen_q);
// One engine holds the operators over a cache, so their families number its pipelines and tiles alike.
static_assert(int(tilekiln::fmha_batch_prefill::Pipeline::dlanes) ==
                  int(tilekiln::fmha_fwd_splitkv::Pipeline::dlanes) &&
              int(tilekiln::fmha_batch_prefill::Pipeline::decode) ==
                  int(tilekiln::fmha_fwd_splitkv::Pipeline::decode) &&
              tilekiln::fmha_batch_prefill::fields::tile_q == tilekiln::fmha_fwd_splitkv::fields::tile_q);

}  // namespace tilekiln::op::fmha_batch_prefill
