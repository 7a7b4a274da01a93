// SPDX-License-Identifier: MIT
// Checks of fmha_fwd_appendkv's arguments that operator.yaml cannot express, and the plain data that engines take. The arguments of
// its attention are checked as split-KV's, over the grown cache.
#include "kernels/generated/operators/fmha_fwd_appendkv.h"

#include <algorithm>
#include <initializer_list>
#include <vector>

#include "kernels/attention/kv_cache.h"
#include "kernels/generated/operators/fmha_fwd_splitkv.h"

namespace tilekiln::op::fmha_fwd_appendkv {
namespace {

bool has_mask(const Args& args) { return args.causal != 0 || args.window_left >= 0 || args.window_right >= 0; }

}  // namespace

tilekiln_status linear(const Args& args, Call& call) {
  const char* const form = args.block_table == nullptr
                               ? (call.exchanged ? "(batch, nhead, seqlen, hdim)" : "(batch, seqlen, nhead, hdim)")
                           : call.exchanged ? "(pages, nhead, page_size, hdim)"
                                            : "(pages, page_size, nhead, hdim)";
  for (const Array* array : {&call.in.k, &call.in.v}) {
    if (array->ndim != 5) continue;
    return fail_argument(array->name,
                         "had 5 dimensions, as vectorized pages have, must have 4, %s: only linear caches can be "
                         "appended to; write the new keys yourself and call fmha_batch_prefill",
                         form);
  }
  return TILEKILN_OK;
}

tilekiln_status rotary(const Args& args, Call& call) {
  const Array &cos = call.in.rotary_cos, &sin = call.in.rotary_sin;
  fmha::AppendProblem& problem = call.to.problem;
  if (!cos.given()) return TILEKILN_OK;
  if (cos.dtype != TILEKILN_FP32) TILEKILN_TRY(check_dtype_like(cos, call.in.k));
  TILEKILN_TRY(check_dtype_like(sin, cos));
  for (const Array* array : {&cos, &sin}) TILEKILN_TRY(check_ndim(*array, 2, "(positions, rotary_dim / 2)"));
  TILEKILN_TRY(check_length(sin, 0, "positions", cos.shape[0], "those of rotary_cos"));
  TILEKILN_TRY(check_length(sin, 1, "rotary_dim / 2", cos.shape[1], "that of rotary_cos"));
  if (cos.shape[1] < 1 || cos.shape[1] > call.D / 2) {
    return fail_argument("rotary_cos", "rotary_dim was 2 x %lld, must be from 2 to %lld, the hdim of q",
                         static_cast<long long>(cos.shape[1]), static_cast<long long>(call.D / 2 * 2));
  }
  for (const Array* array : {&cos, &sin}) TILEKILN_TRY(check_last_contiguous(*array));
  problem.rope = args.rotary_interleaved != 0 ? fmha::Rope::interleaved : fmha::Rope::half;
  problem.rotary_dim = static_cast<int>(2 * cos.shape[1]);
  problem.rotary_cos = cos.data;
  problem.rotary_sin = sin.data;
  problem.rotary_fp32 = cos.dtype == TILEKILN_FP32;
  call.to.positions = cos.shape[0];
  problem.rotary_cos_row = cos.stride[0];
  problem.rotary_sin_row = sin.stride[0];
  problem.q_advances = has_mask(args);
  if (call.in.q.given()) problem.q = call.in.q.data;
  return TILEKILN_OK;
}

tilekiln_status norm(const Args& args, Call& call) {
  const Arrays& in = call.in;
  fmha::AppendProblem& problem = call.to.problem;
  if (!in.q_gamma.given()) return TILEKILN_OK;
  if (dtype_bytes(in.k.dtype) == 1)
    return fail_argument("q_gamma", "was given, must be null: fp8 keys are not normalised");
  if (in.q_gamma.dtype != TILEKILN_FP32) TILEKILN_TRY(check_dtype_like(in.q_gamma, in.k));
  TILEKILN_TRY(check_dtype_like(in.k_gamma, in.q_gamma));
  for (const Array* array : {&in.q_gamma, &in.k_gamma}) {
    TILEKILN_TRY(check_ndim(*array, 1, "(hdim_q)"));
    TILEKILN_TRY(check_length(*array, 0, "hdim_q", call.D, "the hdim of k"));
    TILEKILN_TRY(check_last_contiguous(*array));
  }
  if (!in.rotary_cos.given())
    return fail_argument("q_gamma",
                         "was given without rotary_cos, must be null: heads are normalised before they are rotated");
  problem.q_gamma = in.q_gamma.data, problem.k_gamma = in.k_gamma.data;
  problem.gamma_fp32 = in.q_gamma.dtype == TILEKILN_FP32;
  problem.norm_rounds = args.norm_rounding == 1, problem.norm_epsilon = args.norm_epsilon;
  return TILEKILN_OK;
}

// Finds the places of the new keys, and checks that every position in use has a row of cos and sin.
tilekiln_status places(const Args& args, Call& call) {
  const Arrays& in = call.in;
  fmha::AppendCall& to = call.to;
  const bool paged = call.form == Form::paged;
  const int64_t tokens = paged ? call.Ps : call.Sk;
  to.seqlen_new = static_cast<int>(call.Sn);
  to.seqlen_q = in.q.given() ? static_cast<int>(call.Sq) : 0;
  const fmha::Cache cache =
      paged ? fmha::Cache{true, in.k.shape[0], tokens, 0, 0} : fmha::Cache{false, 0, 0, in.k.shape[0], tokens};
  TILEKILN_TRY(fmha::check_append_places(in, cache, args.max_seqlen_k, &to));
  if (to.problem.rope == fmha::Rope::none) return TILEKILN_OK;
  const int64_t queries = to.problem.q_advances ? to.seqlen_q : std::min(to.seqlen_q, 1);
  const int64_t used = std::max<int64_t>(to.seqlen_new, queries), positions = in.rotary_cos.shape[0];
  const int64_t most = int64_t(args.max_seqlen_k) - to.seqlen_new + used;
  if (to.unread && used > 0 && most > positions) {
    return fail_argument("rotary_cos",
                         "had %lld positions, must have %lld: max_seqlen_k lets a sequence grow to that length",
                         static_cast<long long>(positions), static_cast<long long>(most));
  }
  for (const fmha::AppendSequence& sequence : to.kv_sequences) {
    if (used == 0 || sequence.seqlen_k + used <= positions) continue;
    return fail_argument("rotary_cos", "had %lld positions, must have %lld: sequence %d grows to that length",
                         static_cast<long long>(positions), static_cast<long long>(sequence.seqlen_k + used),
                         sequence.batch);
  }
  return TILEKILN_OK;
}

// Everything is checked: the problem of the engines.
static void fill(Call& call) {
  const Arrays& in = call.in;
  fmha::AppendProblem& problem = call.to.problem;
  fmha::AppendSteps& steps = call.to.steps;
  const fmha::RowLayout layout(false, 4, call.exchanged);
  problem.dtype = fmha::kv_dtype_of(in.k.dtype);
  problem.nhead_k = static_cast<int>(call.Hk);
  problem.hdim_q = static_cast<int>(call.D);
  problem.hdim_v = static_cast<int>(call.Dv);
  problem.k = in.k.data;
  problem.v = in.v.data;
  problem.knew = in.knew.data;
  problem.vnew = in.vnew.data;
  layout.set(in.k, &problem.k_row, &problem.k_head, &steps.k);
  layout.set(in.v, &problem.v_row, &problem.v_head, &steps.v);
  layout.set(in.knew, &problem.knew_row, &problem.knew_head, &steps.knew);
  layout.set(in.vnew, &problem.vnew_row, &problem.vnew_head, &steps.vnew);
  if (in.q.given()) {
    problem.nhead_q = static_cast<int>(call.H);
    layout.set(in.q, &problem.q_row, &problem.q_head, &steps.q);
  }
  if (call.form == Form::paged)
    fmha::set_pages(problem, fmha::KvLayout::linear, call.Ps, in.k.stride[0], in.v.stride[0]);
}

// The call of split-KV that follows.
static tilekiln_status check_attention(const Args& args, Call& call) {
  tilekiln_fmha_fwd_splitkv_args split = tilekiln_fmha_fwd_splitkv_defaults();
  copy_alike(args, split);
  split.instance = -1;
  if (args.max_seqlen_k > 0) split.max_seqlen_q = std::max(call.to.seqlen_q, 1);
  call.to.attends = true;
  if (call.to.unread) {
    TILEKILN_TRY(fmha_fwd_splitkv::check(split, &call.to.attention));
    call.to.attention.unread_keys->more = call.to.seqlen_new;
    return TILEKILN_OK;
  }
  std::vector<int32_t> lengths;
  for (const fmha::AppendSequence& sequence : call.to.kv_sequences)
    lengths.push_back(sequence.seqlen_k + call.to.seqlen_new);
  tilekiln_tensor grown = *args.seqlen_k;
  grown.data = lengths.data();
  grown.device_type = TILEKILN_CPU;
  grown.stride[0] = 1;
  split.seqlen_k = &grown;
  return fmha_fwd_splitkv::check(split, &call.to.attention);
}

tilekiln_status check(const Args& args, fmha::AppendCall* to) {
  namespace family = tilekiln::fmha_fwd_appendkv;
  Call call(to);
  TILEKILN_TRY(read(args, call));
  fill(call);
  const fmha::Rope rope = to->problem.rope;
  call.signature.rope = rope == fmha::Rope::none          ? family::Rope::none
                        : rope == fmha::Rope::interleaved ? family::Rope::interleaved
                                                          : family::Rope::half;
  to->query.codes = family::pack(call.signature);
  to->query.wants[family::wants::hdim_q] = to->problem.hdim_q;
  to->query.wants[family::wants::hdim_v] = to->problem.hdim_v;
  return args.out != nullptr ? check_attention(args, call) : TILEKILN_OK;
}

}  // namespace tilekiln::op::fmha_fwd_appendkv
