// SPDX-License-Identifier: MIT
// Problem -> signatures of the stages, and their instances.
#include <string.h>

#include <initializer_list>

#include "kernels/attention/fmha_bwd/call.h"
#include "kernels/attention/problem.h"
#include "kernels/generated/fmha_bwd_convert_dq.h"
#include "kernels/generated/fmha_bwd_dot_do_o.h"
#include "kernels/generated/fmha_bwd_dq_dk_dv.h"
#include "kernels/generated/operators/fmha_bwd.h"
#include "kernels/runtime/backend.h"
#include "kernels/runtime/choose.h"
#include "kernels/runtime/library.h"

namespace tilekiln::fmha {

namespace {

namespace dot = tilekiln::fmha_bwd_dot_do_o;
namespace main_stage = tilekiln::fmha_bwd_dq_dk_dv;
namespace convert = tilekiln::fmha_bwd_convert_dq;
using MainDropout = main_stage::Dropout;

template <class To>
To dtype_as(Dtype dtype) {
  return dtype == Dtype::fp32 ? To::fp32 : dtype == Dtype::fp16 ? To::fp16 : To::bf16;
}

static_assert(main_stage::wants::hdim_q == want_hdim_q && main_stage::wants::hdim_v == want_hdim_v &&
              dot::wants::hdim_v == 0 && convert::wants::hdim_q == 0);

}  // namespace

void set_bwd_queries(const BwdTraits& traits, Query queries[TILEKILN_BWD_STAGES]) {
  const BwdFeatures& features = traits.features;
  dot::Signature first = {};
  first.dtype = dtype_as<dot::Dtype>(features.dtype);
  first.mode = features.group ? dot::Mode::group : dot::Mode::batch;
  queries[TILEKILN_BWD_DOT_DO_O] = {dot::pack(first), {traits.hdim_v}};

  main_stage::Signature main = {};
  main.dtype = dtype_as<main_stage::Dtype>(features.dtype);
  main.mode = features.group ? main_stage::Mode::group : main_stage::Mode::batch;
  main.mask = features.mask ? main_stage::Mask::window : main_stage::Mask::none;
  main.bias = bias_as<main_stage::Bias>(features.bias);
  main.dbias = features.dbias;
  main.dropout = !features.dropout        ? MainDropout::none
                 : features.store_randval ? MainDropout::store
                                          : MainDropout::apply;
  main.softcap = features.softcap;
  main.sink = features.sink;
  main.deterministic = features.deterministic;
  queries[TILEKILN_BWD_DQ_DK_DV] = {main_stage::pack(main), {traits.hdim_q, traits.hdim_v}};

  convert::Signature last = {};
  last.dtype = dtype_as<convert::Dtype>(features.dtype);
  last.mode = features.group ? convert::Mode::group : convert::Mode::batch;
  last.deterministic = features.deterministic;
  queries[TILEKILN_BWD_CONVERT_DQ] = {convert::pack(last), {traits.hdim_q}};
}

tilekiln_status choose_bwd(int64_t instance, const Query queries[TILEKILN_BWD_STAGES],
                           Choice stages[TILEKILN_BWD_STAGES]) {
  // The main stage first: the others follow it, and its answer is the one that helps.
  constexpr int order[] = {TILEKILN_BWD_DQ_DK_DV, TILEKILN_BWD_DOT_DO_O, TILEKILN_BWD_CONVERT_DQ};
  Stage asked[TILEKILN_BWD_STAGES];
  Choice* choices[TILEKILN_BWD_STAGES];
  for (int i = 0; i < TILEKILN_BWD_STAGES; ++i) {
    asked[i] = {op::fmha_bwd::stages[order[i]], &queries[order[i]], i == 0 ? instance : -1};
    choices[i] = &stages[order[i]];
  }
  return choose_stages(asked, TILEKILN_BWD_STAGES, choices);
}

tilekiln_status choose_instances(const Stages&, int64_t instance, BwdCall& call) {
  TILEKILN_TRY(choose_bwd(instance, call.queries, call.stages));
  return call.backend->takes_units ? check_schedule(shape_of(call), call.physical_k) : TILEKILN_OK;
}

void list_instances(const Stages& stages, const BwdCall& call, int64_t* instances) {
  for (int stage = 0; stage < stages.count; ++stage) instances[stage] = call.stages[stage].instance;
}

tilekiln_status explain_call(Text& text, const Stages& stages, int64_t instance, const BwdCall& call) {
  Stage asked[TILEKILN_BWD_STAGES];
  for (int stage = 0; stage < stages.count; ++stage)
    asked[stage] = {stages.families[stage], &call.queries[stage], stage == TILEKILN_BWD_DQ_DK_DV ? instance : -1};
  return explain_stages(text, asked, stages.count);
}

}  // namespace tilekiln::fmha
