// SPDX-License-Identifier: MIT
// Host code of the backward of attention with functions from Python: from checked arguments to a problem, and its stages.
#pragma once
#include <algorithm>

#include "kernels/attention/function/host.h"
#include "kernels/backends/cpu/parallel.h"

namespace tilekiln::fmha {

inline void fill_gradient(const Array& from, FunctionGradient& to) {
  if (!from.given()) return;
  to.data = reinterpret_cast<float*>(from.data), to.dims = from.ndim;
  i64 step = 1;
  for (int d = from.ndim - 1; d >= 0; step *= from.shape[d], --d) to.stride[d] = from.stride[d], to.step[d] = step;
}

template <class Args, class Call>
void fill_backward(const Args& args, const Call& call, FunctionBwdProblem& to) {
  fill_function(args, call, to);
  const auto rows = [](const Array& from, auto& data, i64& batch, i64& row, i64& head) {
    data = from.data, batch = from.stride[0], row = from.stride[1], head = from.stride[2];
  };
  const auto& in = call.in;
  rows(in.dout, to.dout, to.dout_batch, to.dout_row, to.dout_head);
  rows(in.dq, to.dq, to.dq_batch, to.dq_row, to.dq_head);
  rows(in.dk, to.dk, to.dk_batch, to.dk_row, to.dk_head);
  rows(in.dv, to.dv, to.dv_batch, to.dv_row, to.dv_head);
  to.given_lse = reinterpret_cast<const float*>(in.lse.data);
  to.given_batch = in.lse.stride[0], to.given_head = in.lse.stride[1];
  to.lse_head = to.seqlen_q;
}

// The stages of a backward call and the memory that they hand each other.
class FunctionBackward {
 public:
  explicit FunctionBackward(StageCall<FunctionBwdProblem>& call) : call_(call) {}

  tilekiln_status run() {
    const u64 rows = static_cast<u64>(heads_ * a_.seqlen_q);
    const i64 chunks = (a_.seqlen_k + engine_.tile_k - 1) / engine_.tile_k * a_.nhead_k * a_.batch;
    const double work = 2.5 * a_.seqlen_q * a_.seqlen_k * (a_.hdim_q + a_.hdim_v) * static_cast<double>(heads_);
    const double row_work = 8.0 * static_cast<double>(rows) * (a_.hdim_q + a_.hdim_v);
    a_.alone = useful_threads(call_, chunks, work) == 1;
    TILEKILN_TRY(lse_.get(call_, sizeof(float) * (rows + 1)));
    TILEKILN_TRY(delta_.get(call_, sizeof(float) * (rows + 1)));
    TILEKILN_TRY(dq_.get(call_, sizeof(float) * (rows * static_cast<u64>(a_.hdim_q) + 1)));
    TILEKILN_TRY(marks_.get(call_, static_cast<u64>(heads_ * tiles_ * 2 + 1), 0));
    TILEKILN_TRY(get_sums());
    a_.lse = lse_.as<float>(), a_.delta = delta_.as<float>();
    TILEKILN_TRY(stage(heads_ * tiles_, row_work, [&](i64 unit, void*) { begin_rows(unit); }));
    TILEKILN_TRY(stage(chunks, work, [&](i64 unit, void* scratch) { run_chunk(unit, scratch); }));
    TILEKILN_TRY(stage(heads_ * tiles_, row_work, [&](i64 unit, void*) { engine_.convert_dq(a_, rows_of(unit)); }));
    return stage(kFunctionTensors, 0, [&](i64 unit, void*) { store_sums(static_cast<int>(unit)); });
  }

 private:
  StageCall<FunctionBwdProblem>& call_;
  FunctionBwdProblem& a_ = call_.problem;
  const FunctionBwdEngine& engine_ = *static_cast<const FunctionBwdEngine*>(call_.choice.engine);
  const i64 heads_ = i64(a_.batch) * a_.nhead_q, tiles_ = (a_.seqlen_q + engine_.tile_q - 1) / engine_.tile_q;
  CallMemory lse_, delta_, dq_, marks_, sums_[kFunctionTensors];

  template <class Unit> tilekiln_status stage(i64 units, double work, Unit&& unit) {
    return launch_stage(call_, call_.choice, a_, units, work, engine_.scratch_bytes, unit);
  }

  static i64 elements(const FunctionTensor& tensor, int dims) {
    i64 all = 1;
    for (int d = 0; d < dims; ++d) all *= tensor.count[d];
    return all;
  }

  tilekiln_status get_sums() {
    for (int i = 0; i < kFunctionTensors; ++i) {
      FunctionGradient& one = a_.gradient[i];
      if (one.data == nullptr) continue;
      const u64 bytes = sizeof(double) * static_cast<u64>(elements(a_.tensor[i], one.dims));
      TILEKILN_TRY(sums_[i].get(call_, bytes, 0));
      one.sums = sums_[i].as<double>();
    }
    return TILEKILN_OK;
  }

  void store_sums(int i) {
    const FunctionGradient& one = a_.gradient[i];
    if (one.data == nullptr) return;
    const i64 all = elements(a_.tensor[i], one.dims);
    for (i64 from = 0; from < all; ++from) {
      i64 to = 0;
      for (int d = 0; d < one.dims; ++d) to += from / one.step[d] % a_.tensor[i].count[d] * one.stride[d];
      one.data[to] = static_cast<float>(one.sums[from]);
    }
  }

  BwdRows rows_of(i64 unit) const {
    const i64 head = unit / tiles_, tile = unit % tiles_;
    BwdRows rows = {};
    rows.batch = static_cast<int>(head / a_.nhead_q), rows.head = static_cast<int>(head % a_.nhead_q);
    rows.row = static_cast<int>(tile) * engine_.tile_q;
    rows.row_end = std::min(rows.row + engine_.tile_q, a_.seqlen_q);
    rows.out_offset = rows.batch * a_.out_batch, rows.dout_offset = rows.batch * a_.dout_batch;
    rows.lse_offset = rows.batch * i64(a_.nhead_q) * a_.seqlen_q;
    rows.dq_offset = rows.batch * a_.dq_batch;
    rows.dq_acc = dq_.as<float>() + head * a_.seqlen_q * a_.hdim_q, rows.nsplits = 1;
    rows.dq_begun = marks_.as<unsigned char>() + head * tiles_;
    return rows;
  }

  void begin_rows(i64 unit) {
    const BwdRows rows = rows_of(unit);
    const float* from = a_.given_lse + rows.batch * a_.given_batch + rows.head * a_.given_head;
    float* to = lse_.as<float>() + rows.lse_offset + rows.head * a_.lse_head;
    std::copy(from + rows.row, from + rows.row_end, to + rows.row);
    engine_.dot_do_o(a_, rows);
  }

  void run_chunk(i64 number, void* scratch) {
    const i64 chunks = (a_.seqlen_k + engine_.tile_k - 1) / engine_.tile_k, group = a_.nhead_q / a_.nhead_k;
    BwdUnit unit = {};
    unit.batch = static_cast<int>(number / chunks / a_.nhead_k);
    unit.head = static_cast<int>(number / chunks % a_.nhead_k * group);
    unit.head_end = unit.head + static_cast<int>(group);
    unit.key = static_cast<int>(number % chunks) * engine_.tile_k;
    unit.key_end = std::min(unit.key + engine_.tile_k, a_.seqlen_k);
    unit.seqlen_q = a_.seqlen_q, unit.seqlen_k = a_.seqlen_k;
    unit.q_offset = unit.batch * a_.q_batch, unit.k_offset = unit.batch * a_.k_batch;
    unit.v_offset = unit.batch * a_.v_batch, unit.dout_offset = unit.batch * a_.dout_batch;
    unit.dk_offset = unit.batch * a_.dk_batch, unit.dv_offset = unit.batch * a_.dv_batch;
    const i64 head = i64(unit.batch) * a_.nhead_q + unit.head;
    unit.lse_offset = unit.batch * i64(a_.nhead_q) * a_.seqlen_q;
    unit.dq_acc_head = i64(a_.seqlen_q) * a_.hdim_q, unit.dq_acc = dq_.as<float>() + head * unit.dq_acc_head;
    unit.dq_begun = marks_.as<unsigned char>() + head * tiles_;
    if (!a_.alone) unit.dq_locks = unit.dq_begun + heads_ * tiles_;
    unit.dq_tiles_head = tiles_;
    engine_.chunk(a_, unit, scratch);
  }
};

// Kernels of a device, by the stages of fmha_bwd.
inline tilekiln_status launch_backward_kernels(StageCall<FunctionBwdProblem>& call) {
  const FunctionBwdProblem& a = call.problem;
  FunctionBwdKernelProblem all = {};
  BwdKernelProblem& of = all.of;
  of.problem = a;
  of.problem.features.sink = false;
  of.problem.lse = a.given_lse, of.problem.lse_head = a.given_head;
  of.steps.q = a.q_batch, of.steps.k = a.k_batch, of.steps.v = a.v_batch, of.steps.out = a.out_batch;
  of.steps.dout = a.dout_batch, of.steps.dq = a.dq_batch, of.steps.dk = a.dk_batch, of.steps.dv = a.dv_batch;
  of.steps.lse = a.given_batch;
  of.batch = a.batch, of.seqlen_q = a.seqlen_q, of.seqlen_k = a.seqlen_k;
  of.total_q = i64(a.batch) * a.seqlen_q, of.alike = true;
  of.hdim_q = a.hdim_q, of.hdim_v = a.hdim_v;
  for (int i = 0; i < kFunctionTensors; ++i) {
    all.tensor[i] = all.gradient[i] = a.tensor[i];
    const FunctionGradient& to = a.gradient[i];
    all.gradient[i].data = to.data;
    i64 elements = 1;
    for (int d = 0; d < to.dims; ++d) {
      if (a.tensor[i].count[d] > 1 && to.stride[d] != to.step[d])
        return fail_argument("gradients", "of a tensor had stride %lld, must be contiguous on a GPU", to.stride[d]);
      all.gradient[i].stride[d] = to.step[d];
      elements *= a.tensor[i].count[d];
    }
    if (to.data == nullptr) continue;
    const size_t bytes = sizeof(float) * static_cast<size_t>(elements);
    TILEKILN_TRY(call.backend->fill(call.device, call.native, to.data, 0, bytes));
  }
  u64 bytes = 0;
  of.workspace_bytes = &bytes;
  TILEKILN_TRY(launch_kernel(call, call.choice, all));
  of.workspace_bytes = nullptr;
  CallMemory workspace;
  TILEKILN_TRY(workspace.get(call, bytes));
  of.workspace = workspace.as<char>();
  for (const int stage : {TILEKILN_BWD_DOT_DO_O, TILEKILN_BWD_DQ_DK_DV, TILEKILN_BWD_CONVERT_DQ}) {
    of.stage = stage;
    TILEKILN_TRY(launch_kernel(call, call.choice, all));
  }
  return TILEKILN_OK;
}

inline tilekiln_status launch_backward(StageCall<FunctionBwdProblem>& call) {
  return call.backend->takes_units ? FunctionBackward(call).run() : launch_backward_kernels(call);
}

}  // namespace tilekiln::fmha
