// SPDX-License-Identifier: MIT
// The stages of a backward call on a backend with kernels of its own, in stream order.
#include <initializer_list>

#include "kernels/attention/fmha_bwd/call.h"
#include "kernels/generated/fmha_bwd_dq_dk_dv.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::fmha {
namespace {

BwdKernelProblem problem_of(const BwdCall& call) {
  const Row& row = *call.stages[TILEKILN_BWD_DQ_DK_DV].row;
  const auto instance = fmha_bwd_dq_dk_dv::unpack(row.codes, row.integers);
  BwdKernelProblem of = {};
  of.problem = call.problem;
  of.steps = call.steps;
  of.d_sink = call.d_sink;
  of.batch = call.batch;
  of.seqlen_q = call.seqlen_q;
  of.seqlen_k = call.seqlen_k;
  of.alike = call.uniform;
  of.total_q = call.physical_q;
  of.workers = call.workers;
  of.hdim_q = static_cast<int>(instance.hdim_q);
  of.hdim_v = static_cast<int>(instance.hdim_v);
  return of;
}

tilekiln_status ask_workspace(const tilekiln::Run& run, const Choice& main, BwdKernelProblem of, uint64_t* bytes) {
  u64 needed = 0;
  of.workspace_bytes = &needed;
  TILEKILN_TRY(launch_kernel(run, main, of));
  *bytes = needed;
  return TILEKILN_OK;
}

}  // namespace

tilekiln_status kernels_workspace_size(const BwdCall& call, uint64_t* bytes) {
  return ask_workspace(call, call.stages[TILEKILN_BWD_DQ_DK_DV], problem_of(call), bytes);
}

u64 kernels_host_segment(bool group, int batch) {
  constexpr u64 granule = 4096;
  return group ? (8 * (static_cast<u64>(batch) + 1) + granule - 1) / granule * granule : 0;
}

tilekiln_status kernels_workspace_bound(const tilekiln::Run& run, const Choice& main, BwdKernelProblem of,
                                        uint64_t* bytes) {
  const auto instance = fmha_bwd_dq_dk_dv::unpack(main.row->codes, main.row->integers);
  of.hdim_q = static_cast<int>(instance.hdim_q);
  of.hdim_v = static_cast<int>(instance.hdim_v);
  *bytes = 0;
  // A mask of each kind of schedule: none, causal, a window.
  constexpr struct { int left, right; } windows[] = {{-1, -1}, {-1, 0}, {0, 0}};
  for (const auto& window : windows) {
    if (!of.problem.features.mask && window.right >= 0) continue;
    of.problem.window_left = window.left;
    of.problem.window_right = window.right;
    uint64_t needed = 0;
    TILEKILN_TRY(ask_workspace(run, main, of, &needed));
    if (needed > *bytes) *bytes = needed;
  }
  return TILEKILN_OK;
}

tilekiln_status run_kernels(BwdCall& call) {
  // d_sink of a call without a row is 0, and no kernel runs for it.
  if (call.d_sink != nullptr && (call.batch == 0 || call.seqlen_q == 0))
    TILEKILN_TRY(call.backend->fill(call.device, call.native, call.d_sink, 0,
                                    sizeof(float) * static_cast<size_t>(call.problem.nhead_q)));
  if (call.batch == 0 || call.problem.nhead_q == 0) return TILEKILN_OK;
  BwdKernelProblem of = problem_of(call);
  uint64_t needed = 0;
  TILEKILN_TRY(kernels_workspace_size(call, &needed));
  CallMemory own, lengths;
  if (call.memory == BwdMemory::own) {
    TILEKILN_TRY(own.get(call, needed));
    of.workspace = own.as<char>();
  } else {
    const bool prepared = call.memory == BwdMemory::prepared;
    const u64 host = prepared ? kernels_host_segment(call.problem.features.group, call.batch) : 0;
    TILEKILN_TRY(check_workspace_size(call.workspace, host + needed));
    of.workspace = call.workspace.data + host;
  }
  TILEKILN_TRY(place_lengths(call, call.problem.features.group, &lengths, &of.lengths));
  if (call.memory == BwdMemory::prepared && call.problem.features.group) {
    of.lengths.seqstart_q = reinterpret_cast<const int*>(call.workspace.data);
    of.lengths.seqstart_k = of.lengths.seqstart_q + call.batch + 1;
  }
  for (const int stage : {TILEKILN_BWD_DOT_DO_O, TILEKILN_BWD_DQ_DK_DV, TILEKILN_BWD_CONVERT_DQ}) {
    of.stage = stage;
    TILEKILN_TRY(launch_kernel(call, call.stages[stage], of));
  }
  return TILEKILN_OK;
}

}  // namespace tilekiln::fmha
