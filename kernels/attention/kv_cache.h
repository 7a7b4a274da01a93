// SPDX-License-Identifier: MIT
// Fills the plain data of engines over a KV cache from checked arguments: what its operators fill alike.
#pragma once
#include "kernels/attention/kv/call.h"
#include "kernels/attention/problem.h"

namespace tilekiln::fmha {

template <class To>
To dtype_as(KvDtype dtype) {
  return dtype == KvDtype::fp32   ? To::fp32
         : dtype == KvDtype::fp16 ? To::fp16
         : dtype == KvDtype::bf16 ? To::bf16
                                  : To::fp8;
}

// Dtype of an operator whose arrays all have one.
inline KvDtype kv_dtype_of(int32_t dtype) {
  return dtype == TILEKILN_FP32   ? KvDtype::fp32
         : dtype == TILEKILN_FP16 ? KvDtype::fp16
         : dtype == TILEKILN_BF16 ? KvDtype::bf16
                                  : KvDtype::fp8;
}

template <class Problem>
void set_pages(Problem& problem, KvLayout layout, int64_t page_size, i64 k_page, i64 v_page) {
  problem.pages.page_size = static_cast<int>(page_size);
  problem.pages.layout = layout;
  problem.pages.k_page = k_page;
  problem.pages.v_page = v_page;
}

// Features, sizes, masks and queries of a call whose arrays all have their shapes: what finding its keys needs.
template <class Args, class Call>
void fill_queries(const Args& args, const Call& call, bool group, bool heads_first, KvDtype dtype) {
  const auto& in = call.in;
  KvProblem& problem = call.to.problem;
  FwdFeatures& features = problem.features;
  features.group = group;
  features.bias = bias_of(call.signature.bias);
  features.mask = call.signature.mask != decltype(call.signature.mask)::none;
  features.softcap = call.signature.softcap;
  features.sink = has_sink(args);
  features.qscale = dtype_bytes(in.k.dtype) == 1 ? Qscale::pertensor : Qscale::none;
  problem.dtype = dtype;
  problem.out_scale = 1;
  problem.nhead_q = static_cast<int>(call.H);
  problem.nhead_k = static_cast<int>(call.Hk);
  problem.hdim_q = static_cast<int>(call.D);
  problem.hdim_v = static_cast<int>(call.Dv);
  const RowLayout layout(group, in.q.ndim, heads_first);
  problem.q = in.q.data;
  problem.k = in.k.data;
  problem.v = in.v.data;
  problem.out = in.out.data;
  layout.set(in.q, &problem.q_row, &problem.q_head, &call.to.steps.q);
  layout.set(in.out, &problem.out_row, &problem.out_head, &call.to.steps.out);
  problem.softmax_scale = scale_of(args, call.D);
  problem.softcap = args.softcap;
  fill_mask(args, problem);
}

inline const float* scale_data(const Array& array) {
  return array.given() ? reinterpret_cast<const float*>(array.data) : nullptr;
}

template <class Call>
void set_kv_query(const Call& call) {
  call.to.query.wants[want_hdim_q] = call.to.problem.hdim_q;
  call.to.query.wants[want_hdim_v] = call.to.problem.hdim_v;
  call.to.query.sizes[size_seqlen_q] = call.to.seqlen_q;
}

// ---- a contiguous cache, or a pool of pages that lie as (pages, page_size, nhead, hdim): split-KV and paged KV ----

template <class Args, class Call>
tilekiln_status check_linear_keys(const Args& args, Call& call, bool group, bool paged) {
  const auto& in = call.in;
  KvProblem& problem = call.to.problem;
  fill_queries(args, call, group, call.exchanged, kv_dtype_of(in.q.dtype));
  const RowLayout layout(group && !paged, in.k.ndim, call.exchanged);
  layout.set(in.k, &problem.k_row, &problem.k_head, &call.to.steps.k);
  layout.set(in.v, &problem.v_row, &problem.v_head, &call.to.steps.v);
  Cache cache = {false, 0, 0, group ? 0 : in.k.shape[0], in.k.shape[layout.seq]};
  if (paged) {
    call.to.steps.k = call.to.steps.v = 0;
    cache = {true, in.k.shape[0], in.k.shape[layout.seq], 0, 0};
    set_pages(problem, KvLayout::linear, cache.page_size, in.k.stride[0], in.v.stride[0]);
  }
  return check_keys(in, cache, group, args.is_gappy != 0, group ? call.Tq : call.Sq,
                    {args.max_seqlen_q, args.max_seqlen_k}, &call.to);
}

// Numbers, unless a stream has yet to write them.
template <class Args, class Call>
tilekiln_status check_scales(const Args& args, Call& call) {
  KvProblem& problem = call.to.problem;
  problem.q_descale = scale_data(call.in.q_descale);
  problem.k_descale = scale_data(call.in.k_descale);
  problem.v_descale = scale_data(call.in.v_descale);
  return args.stream == nullptr ? check_kv_scales(call.to) : TILEKILN_OK;
}

}  // namespace tilekiln::fmha
