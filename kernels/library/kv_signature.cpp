// Problem -> signatures of the families over a KV cache.
#include "tilekiln/generated/fmha_batch_prefill.h"
#include "tilekiln/generated/fmha_fwd_appendkv.h"
#include "tilekiln/generated/fmha_fwd_pagedkv.h"
#include "tilekiln/generated/fmha_fwd_splitkv.h"
#include "tilekiln/generated/fmha_fwd_splitkv_combine.h"
#include "tilekiln/runtime/fmha_kv.h"

namespace tilekiln::fmha {
namespace {

namespace splitkv = tilekiln::fmha_fwd_splitkv;
namespace combine = tilekiln::fmha_fwd_splitkv_combine;
namespace pagedkv = tilekiln::fmha_fwd_pagedkv;
namespace appendkv = tilekiln::fmha_fwd_appendkv;
namespace prefill = tilekiln::fmha_batch_prefill;

// The engine's enums are written by hand, because engines include nothing generated.
#define TILEKILN_SAME(type, family, value)                                              \
  static_assert(static_cast<int>(type::value) == static_cast<int>(family::type::value), \
                "fmha/fwd_engine.h and the families over a KV cache must number " #type "::" #value " alike")
TILEKILN_SAME(Bias, splitkv, none);
TILEKILN_SAME(Bias, splitkv, elementwise);
TILEKILN_SAME(Bias, splitkv, alibi);
TILEKILN_SAME(Bias, pagedkv, none);
TILEKILN_SAME(Bias, pagedkv, elementwise);
TILEKILN_SAME(Bias, pagedkv, alibi);
TILEKILN_SAME(Bias, prefill, none);
TILEKILN_SAME(Bias, prefill, elementwise);
TILEKILN_SAME(Bias, prefill, alibi);
TILEKILN_SAME(Rope, appendkv, none);
TILEKILN_SAME(Rope, appendkv, interleaved);
TILEKILN_SAME(Rope, appendkv, half);
#undef TILEKILN_SAME
static_assert(splitkv::wants::hdim_q == want_hdim_q && splitkv::wants::hdim_v == want_hdim_v &&
              pagedkv::wants::hdim_q == want_hdim_q && pagedkv::wants::hdim_v == want_hdim_v &&
              appendkv::wants::hdim_q == want_hdim_q && appendkv::wants::hdim_v == want_hdim_v &&
              prefill::wants::hdim_q == want_hdim_q && prefill::wants::hdim_v == want_hdim_v);
static_assert(splitkv::sizes::seqlen_q == size_seqlen_q && pagedkv::sizes::seqlen_q == size_seqlen_q &&
              prefill::sizes::seqlen_q == size_seqlen_q && prefill::sizes::cache_bytes == size_cache_bytes &&
              prefill::sizes::page_tokens == size_page_tokens && combine::wants::hdim_v == 0);

template <class Dtype>
Dtype dtype_as(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::fp32: return Dtype::fp32;
    case KvDtype::fp16: return Dtype::fp16;
    case KvDtype::bf16: return Dtype::bf16;
    default: return Dtype::fp8;
  }
}

// The axes that split-KV and paged KV have alike.
template <class Signature>
void set_alike(const KvCall& call, Signature& signature) {
  const FwdFeatures& features = call.problem.features;
  using Mode = decltype(signature.mode);
  using Mask = decltype(signature.mask);
  using Qscale = decltype(signature.qscale);
  signature.dtype = dtype_as<decltype(signature.dtype)>(call.problem.dtype);
  signature.mode = features.group ? Mode::group : Mode::batch;
  signature.mask = features.mask ? Mask::window : Mask::none;
  signature.bias = static_cast<decltype(signature.bias)>(features.bias);
  signature.softcap = features.softcap;
  signature.sink = features.sink;
  signature.qscale = call.problem.dtype == KvDtype::fp8 ? Qscale::pertensor : Qscale::none;
}

}  // namespace

void set_splitkv_signature(KvCall* call) {
  const bool fp8 = call->problem.dtype == KvDtype::fp8;
  splitkv::Signature main = {};
  set_alike(*call, main);
  main.paged = call->problem.pages.page_size != 0;
  main.lse = true;
  call->query.features = splitkv::pack(main);

  combine::Signature second = {};
  second.dtype = dtype_as<combine::Dtype>(call->problem.dtype);
  second.mode = call->problem.features.group ? combine::Mode::group : combine::Mode::batch;
  second.qscale = fp8 ? combine::Qscale::pertensor : combine::Qscale::none;
  second.lse = call->problem.features.lse;
  call->combine_query = {combine::pack(second), {call->problem.hdim_v}};
}

void set_pagedkv_signature(KvCall* call) {
  pagedkv::Signature signature = {};
  set_alike(*call, signature);
  call->query.features = pagedkv::pack(signature);
}

void set_batch_prefill_signature(bool vectorized, bool block_table, bool block_scales, KvCall* call) {
  const KvProblem& problem = call->problem;
  const FwdFeatures& features = problem.features;
  prefill::Signature signature = {};
  signature.dtype = problem.dtype == KvDtype::fp16      ? prefill::Dtype::fp16
                    : problem.dtype == KvDtype::fp8bf16 ? prefill::Dtype::fp8bf16
                                                        : prefill::Dtype::bf16;
  signature.kv_dtype = problem.dtype == KvDtype::bf16_fp8 ? prefill::KvDtype::fp8 : prefill::KvDtype::same;
  signature.mode = prefill::Mode::group;
  // Classes: a page of a key tile or more is served as 1024, a smaller one as 16.
  constexpr int key_tile = 64;
  const int page_size = problem.pages.page_size;
  signature.page_size = page_size == 1         ? prefill::PageSize::_1
                        : page_size < key_tile ? prefill::PageSize::_16
                                               : prefill::PageSize::_1024;
  signature.layout = vectorized ? prefill::Layout::vectorized : prefill::Layout::linear;
  signature.lookup = block_table ? prefill::Lookup::vllm : prefill::Lookup::sglang;
  signature.mask = features.mask ? prefill::Mask::window : prefill::Mask::none;
  signature.bias = static_cast<prefill::Bias>(features.bias);
  signature.softcap = features.softcap;
  signature.lse = features.lse;
  signature.dropout = features.dropout;
  signature.sink = features.sink;
  signature.qscale = block_scales                      ? prefill::Qscale::kv_blockscale
                     : features.qscale == Qscale::none ? prefill::Qscale::none
                                                       : prefill::Qscale::pertensor;
  call->query.features = prefill::pack(signature);
}

void set_appendkv_signature(AppendCall* call) {
  appendkv::Signature signature = {};
  signature.dtype = dtype_as<appendkv::Dtype>(call->problem.dtype);
  signature.rope = static_cast<appendkv::Rope>(call->problem.rope);
  signature.paged = call->problem.pages.page_size != 0;
  call->query.features = appendkv::pack(signature);
}

}  // namespace tilekiln::fmha
