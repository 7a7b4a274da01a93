// SPDX-License-Identifier: MIT
// Checks of fmha_bwd's arguments that operator.yaml cannot express, and the plain data that engines take.
#include "kernels/generated/operators/fmha_bwd.h"

#include <stdio.h>

#include <initializer_list>

#include "kernels/attention/fmha_bwd/launcher.h"
#include "kernels/attention/index_arrays.h"
#include "kernels/attention/problem.h"

namespace tilekiln::op::fmha_bwd {
namespace {

// Checks of the index arrays that need none of their contents, which may not be read yet.
tilekiln_status check_index_shapes(Call& call) {
  if (call.form == Form::group) {
    const Array& starts = call.in.seqstart_q.given() ? call.in.seqstart_q : call.in.cu_seqlens_q;
    if (!starts.given())
      return fail_argument("seqstart_q", "was null, must be given in group mode (q of 3 dimensions)");
    TILEKILN_TRY(check_ndim(starts, 1, "batch + 1"));
    if (starts.shape[0] < 1) return fail_argument(starts.name, "had no entry, must have batch + 1");
    call.to.batch = static_cast<int>(starts.shape[0] - 1);
  }
  const Array* const starts[] = {&call.in.seqstart_q, &call.in.seqstart_k, &call.in.cu_seqlens_q,
                                 &call.in.cu_seqlens_k};
  for (const Array* array : starts)
    if (array->given()) TILEKILN_TRY(fmha::check_index(*array, call.to.batch + 1, "batch + 1"));
  for (const Array* array : {&call.in.seqlen_q, &call.in.seqlen_k})
    if (array->given()) TILEKILN_TRY(fmha::check_index(*array, call.to.batch, "batch"));
  return TILEKILN_OK;
}

// Everything is checked: the problem of the engines, and the steps from sequence to sequence.
void fill(const Args& args, const Call& call) {
  const Arrays& in = call.in;
  const auto& signature = call.signature;
  fmha::BwdCall& to = call.to;
  fmha::BwdProblem& problem = to.problem;
  fmha::BwdSteps& steps = to.steps;
  problem.features = {
      fmha::dtype_of(in.q.dtype),
      fmha::bias_of(signature.bias),
      call.form == Form::group,
      signature.mask != decltype(signature.mask)::none,
      signature.dbias,
      args.dropout_p > 0,
      args.randval != nullptr,
      signature.softcap,
      fmha::has_sink(args),
      signature.deterministic,
  };
  problem.nhead_q = static_cast<int>(call.H);
  problem.nhead_k = static_cast<int>(call.Hk);
  problem.hdim_q = static_cast<int>(call.D);
  problem.hdim_v = static_cast<int>(call.Dv);

  const fmha::RowLayout layout(call.form == Form::group, in.q.ndim, call.exchanged);
  problem.q = in.q.data;
  problem.k = in.k.data;
  problem.v = in.v.data;
  problem.out = in.out.data;
  problem.dout = in.dout.data;
  problem.dq = in.dq.data;
  problem.dk = in.dk.data;
  problem.dv = in.dv.data;
  layout.set(in.q, &problem.q_row, &problem.q_head, &steps.q);
  layout.set(in.k, &problem.k_row, &problem.k_head, &steps.k);
  layout.set(in.v, &problem.v_row, &problem.v_head, &steps.v);
  layout.set(in.out, &problem.out_row, &problem.out_head, &steps.out);
  layout.set(in.dout, &problem.dout_row, &problem.dout_head, &steps.dout);
  layout.set(in.dq, &problem.dq_row, &problem.dq_head, &steps.dq);
  layout.set(in.dk, &problem.dk_row, &problem.dk_head, &steps.dk);
  layout.set(in.dv, &problem.dv_row, &problem.dv_head, &steps.dv);
  problem.lse = reinterpret_cast<const float*>(in.lse.data);
  problem.lse_head = in.lse.stride[in.lse.ndim - 2];
  steps.lse = layout.group ? 1 : in.lse.stride[0];
  fill_biases(in, layout, problem, steps);
  fill_randval(in, layout, problem, steps);
  if (in.dbias.given()) {
    problem.dbias = in.dbias.data;
    layout.set_scores(in.dbias, &problem.dbias_row, &problem.dbias_head, &steps.dbias);
  }
  to.lse = in.lse;
  if (in.delta.given()) problem.delta = reinterpret_cast<float*>(in.delta.data);
  if (in.d_sink.given()) to.d_sink = reinterpret_cast<float*>(in.d_sink.data);
  if (in.workspace.given()) {
    to.memory = fmha::BwdMemory::given;
    to.workspace = in.workspace;
  }
  problem.softmax_scale = fmha::scale_of(args, call.D);
  problem.softcap = args.softcap;
  fill_dropout(args, problem);
  fill_mask(args, problem);

  to.workers = args.workers;
  to.physical_q = layout.group ? call.Tq : call.Sq;
  to.physical_k = layout.group ? call.Tk : call.Sk;
  // Bound of an unread call, the most that it can be: where lengths stand beside the starts, sequences may be padded.
  const bool padded = in.seqlen_k.given() || (in.seqstart_k.given() && in.cu_seqlens_k.given());
  if (to.unread) to.longest_k = padded ? to.physical_k : to.seqlen_k;
  for (const fmha::Sequence& sequence : to.sequences) {
    if (sequence.room_k > to.longest_k) to.longest_k = sequence.room_k;
  }
  fmha::set_bwd_queries({problem.features, problem.hdim_q, problem.hdim_v}, to.queries);
  for (Query& query : to.queries) query.device = to.device;
}

}  // namespace

tilekiln_status sequences(const Args& args, Call& call) {
  if (call.to.lengths == fmha::BwdLengths::later) return check_index_shapes(call);
  const bool group = call.form == Form::group;
  return check_sequences_within(call.in, group, group ? call.Tq : call.Sq, group ? call.Tk : call.Sk, nullptr,
                                args.max_seqlen_q, args.max_seqlen_k, &call.to);
}

// The very place and strides of lse.
tilekiln_status delta(const Args&, Call& call) {
  const Array &delta = call.in.delta, &lse = call.in.lse;
  if (!delta.given()) return TILEKILN_OK;
  TILEKILN_TRY(check_dtype(delta, TILEKILN_FP32, "fp32"));
  TILEKILN_TRY(check_ndim(delta, lse.ndim, "as lse"));
  for (int i = 0; i < lse.ndim; ++i) {
    char dimension[16];
    snprintf(dimension, sizeof(dimension), "dimension %d", i);
    TILEKILN_TRY(check_length(delta, i, dimension, lse.shape[i], "as in lse"));
    if (delta.stride[i] != lse.stride[i] && lse.shape[i] > 1) {
      return fail_argument("delta", "the stride of dimension %d was %lld, must be %lld, that of lse", i,
                           static_cast<long long>(delta.stride[i]), static_cast<long long>(lse.stride[i]));
    }
  }
  return TILEKILN_OK;
}

tilekiln_status workspace(const Args&, Call& call) {
  return call.in.workspace.given() ? fmha::check_workspace(call.in.workspace) : TILEKILN_OK;
}

}  // namespace tilekiln::op::fmha_bwd

namespace tilekiln::fmha {

tilekiln_status check_workspace(const Array& workspace) {
  TILEKILN_TRY(check_dtype(workspace, TILEKILN_UINT8, "uint8"));
  TILEKILN_TRY(check_ndim(workspace, 1, "bytes"));
  TILEKILN_TRY(check_last_contiguous(workspace));
  if (reinterpret_cast<uintptr_t>(workspace.data) % 16 != 0) {
    return fail_argument("workspace", "data was at %p, must be aligned to 16 bytes",
                         static_cast<const void*>(workspace.data));
  }
  return TILEKILN_OK;
}

tilekiln_status check_bwd(const tilekiln_fmha_bwd_args& args, BwdCall* to, BwdLengths lengths) {
  to->lengths = lengths;
  op::fmha_bwd::Call call(to);
  TILEKILN_TRY(op::fmha_bwd::read(args, call));
  op::fmha_bwd::fill(args, call);
  return TILEKILN_OK;
}

tilekiln_status check_fields(const tilekiln_fmha_bwd_problem& problem) { return op::fmha_bwd::check_problem(problem); }

}  // namespace tilekiln::fmha

tilekiln_status tilekiln::op::fmha_bwd::check(const Args& args, fmha::BwdCall* to) { return check_bwd(args, to); }
