// SPDX-License-Identifier: MIT
// Host code of attention with functions from Python: from checked arguments to a problem, and its units. The generated host.cpp has
// the arguments of its functions beside it.
#pragma once
#include "kernels/attention/function/engine.h"
#include "kernels/attention/problem.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::fmha {

inline void fill_tensor(const Array& from, FunctionTensor& to) {
  to.data = from.data;
  for (int d = 0; d < from.ndim; ++d) {
    to.stride[d] = from.stride[d];
    to.count[d] = static_cast<int>(from.shape[d]);
  }
}

// Sets all that forward and backward have in common.
template <class Args, class Call, class Problem>
void fill_function(const Args& args, const Call& call, Problem& to) {
  const auto& in = call.in;
  fill_mask(args, to);
  to.features.mask = true;
  to.features.sink = to.sink_keys > 0;
  to.softmax_scale = scale_of(args, call.D);
  to.nhead_q = static_cast<int>(call.H), to.nhead_k = static_cast<int>(call.Hk);
  to.hdim_q = static_cast<int>(call.D), to.hdim_v = static_cast<int>(call.Dv);
  to.batch = static_cast<int>(call.B);
  to.seqlen_q = static_cast<int>(call.Sq), to.seqlen_k = static_cast<int>(call.Sk);
  const auto rows = [](const Array& from, auto& data, i64& batch, i64& row, i64& head) {
    data = from.data, batch = from.stride[0], row = from.stride[1], head = from.stride[2];
  };
  rows(in.q, to.q, to.q_batch, to.q_row, to.q_head);
  rows(in.k, to.k, to.k_batch, to.k_row, to.k_head);
  rows(in.v, to.v, to.v_batch, to.v_row, to.v_head);
  rows(in.out, to.out, to.out_batch, to.out_row, to.out_head);
}

template <class Args, class Call>
void fill_forward(const Args& args, const Call& call, FunctionProblem& to) {
  fill_function(args, call, to);
  if (!call.in.lse.given()) return;
  to.features.lse = true;
  to.lse = reinterpret_cast<float*>(call.in.lse.data);
  to.lse_batch = call.in.lse.stride[0], to.lse_head = call.in.lse.stride[1];
}

inline tilekiln_status launch_forward(StageCall<FunctionProblem>& call) {
  if (!call.backend->takes_units) return launch_kernel(call, call.choice, call.problem);
  const FunctionProblem& a = call.problem;
  const auto& engine = *static_cast<const FunctionEngine*>(call.choice.engine);
  const int64_t tiles = (a.seqlen_q + engine.tile_q - 1) / engine.tile_q, units = tiles * a.nhead_q * a.batch;
  const double work = static_cast<double>(a.seqlen_q) * a.seqlen_k * (a.hdim_q + a.hdim_v) * a.nhead_q * a.batch;
  return launch_stage(call, call.choice, a, units, work, engine.scratch_bytes, [&](int64_t number, void* scratch) {
    const auto row = [&](int64_t one) { return static_cast<int>(tiles - 1 - one % tiles) * engine.tile_q; };
    const auto head = [&](int64_t one) { return static_cast<int>(one / tiles % a.nhead_q); };
    FwdUnit unit = {};
    unit.row = row(number), unit.head = head(number);
    const bool follows = (number + 1) % (tiles * a.nhead_q) != 0;
    unit.next_head = follows ? head(number + 1) : -1, unit.next_row = follows ? row(number + 1) : 0;
    unit.batch = static_cast<int>(number / tiles / a.nhead_q);
    unit.seqlen_q = a.seqlen_q, unit.seqlen_k = a.seqlen_k;
    unit.q_offset = unit.batch * a.q_batch, unit.k_offset = unit.batch * a.k_batch;
    unit.v_offset = unit.batch * a.v_batch, unit.out_offset = unit.batch * a.out_batch;
    unit.lse_offset = unit.batch * a.lse_batch;
    engine.tile(a, unit, scratch);
  });
}

}  // namespace tilekiln::fmha
