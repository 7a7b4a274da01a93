// SPDX-License-Identifier: MIT
#include "kernels/attention/fmha_bwd/buffers.h"

#include <string.h>

#include <algorithm>

#include "kernels/backends/cpu/parallel.h"
#include "kernels/backends/cpu/scratch.h"

namespace tilekiln::fmha {
namespace {

tilekiln_status take(const BwdCall& call, CallMemory& memory, u64 bytes, bool zero) {
  if (bytes == 0) return TILEKILN_OK;
  const tilekiln_status status = memory.get(call, bytes, zero ? 0 : -1);
  if (status != TILEKILN_OUT_OF_MEMORY) return status;
  return fail(status, "no memory for %llu bytes of workspace; nothing was written", bytes);
}

tilekiln_status copy(const BwdCall& call, void* to, const void* from, size_t bytes, Direction direction) {
  return call.backend->copy(call.device, call.native, to, from, bytes, direction);
}

tilekiln_status warm_scratch(const BwdCall& call) {
  u64 scratch = 64;
  for (const Choice& stage : call.stages)
    scratch = std::max(scratch, static_cast<const BwdEngine*>(stage.engine)->scratch_bytes);
  if (thread_scratch(scratch) != nullptr) return TILEKILN_OK;
  return fail(TILEKILN_OUT_OF_MEMORY, "no memory for %llu bytes of scratch; nothing was written", scratch);
}

}  // namespace

tilekiln_status BwdBuffers::get(BwdCall& call, BwdUnits& units) {
  const BwdProblem& problem = call.problem;
  TILEKILN_TRY(warm_scratch(call));
  TILEKILN_TRY(get_workspace(call, units));
  TILEKILN_TRY(get_delta(call, units));
  i64 marks = 0;
  for (BwdSequence& s : units.sequences) {
    s.marks = marks;
    marks += s.tiles * s.nsplits * problem.nhead_q;
  }
  if (call.d_sink != nullptr) TILEKILN_TRY(take(call, shares, sizeof(float) * units.rows.size(), true));
  if (units.own_heads) {
    const u64 rows = static_cast<u64>(units.rows_of_heads());
    TILEKILN_TRY(take(call, dk_acc, sizeof(float) * rows * static_cast<u64>(problem.hdim_q), false));
    TILEKILN_TRY(take(call, dv_acc, sizeof(float) * rows * static_cast<u64>(problem.hdim_v), false));
  }
  if (!problem.features.deterministic && useful_threads(call, static_cast<i64>(units.keys.size()), units.work) > 1) {
    TILEKILN_TRY(take(call, locks_, static_cast<u64>(marks), true));
    locks = locks_.as<unsigned char>();
  }
  // Memory that a launcher has prepared is clear. Else a tile of dq_acc is stored before it is added to.
  if (call.memory != BwdMemory::prepared) {
    TILEKILN_TRY(take(call, begun_, static_cast<u64>(marks), true));
    begun = begun_.as<unsigned char>();
  }
  return TILEKILN_OK;
}

tilekiln_status BwdBuffers::get_workspace(BwdCall& call, BwdUnits& units) {
  BwdStarts starts;
  set_starts(call, &starts);
  const bool prepared = call.memory == BwdMemory::prepared;
  uint64_t needed = 0;
  TILEKILN_TRY(workspace_size(call, &needed));
  if (call.memory == BwdMemory::own) {
    TILEKILN_TRY(take(call, own_, needed, false));
    workspace = own_.as<char>();
  } else {
    TILEKILN_TRY(check_workspace_size(call.workspace, needed));
    workspace = call.workspace.data;
  }
  // A prepared host segment is compared with what it must be, because a wrong one would send workers anywhere.
  const bool apart = prepared || !call.backend->host_memory;
  if (apart) packed_.resize((units.layout.host + 7) / 8);
  schedule = apart ? reinterpret_cast<char*>(packed_.data()) : workspace;
  dq_acc_bytes = pack(units.shape, starts.q.begin(), starts.k.begin(), schedule);
  if (prepared) TILEKILN_TRY(check_prepared(call, units));
  dq_acc = reinterpret_cast<float*>(workspace + units.layout.host);
  const GroupSchedule parts = schedule_in(units.layout, schedule);
  const i64 head = call.problem.hdim_q;
  for (BwdSequence& s : units.sequences) {
    if (units.shape.group_schedule()) {
      s.nsplits = parts.nsplits[s.batch];
      s.acc = parts.offsets[s.batch];
    } else {
      s.nsplits = parts.nsplits[0];
      const i64 rows_before = units.shape.group ? starts.q[static_cast<size_t>(s.batch)] : s.batch * call.physical_q;
      s.acc = rows_before * s.nsplits * call.problem.nhead_q * head;
    }
  }
  return TILEKILN_OK;
}

tilekiln_status BwdBuffers::check_prepared(const BwdCall& call, const BwdUnits& units) const {
  std::vector<u64> found((units.layout.raw + 7) / 8);
  TILEKILN_TRY(copy(call, found.data(), workspace, units.layout.raw, Direction::to_host));
  if (memcmp(schedule, found.data(), units.layout.raw) == 0) return TILEKILN_OK;
  return fail_argument(
      "workspace",
      "was not prepared for these sequences, must be prepared by this launcher with their starts, for every run");
}

// delta lies as lse does. Where lse is not one piece, both get a place of their own.
tilekiln_status BwdBuffers::get_delta(BwdCall& call, BwdUnits& units) {
  BwdProblem& problem = call.problem;
  if (problem.delta != nullptr) return TILEKILN_OK;
  const bool group = units.shape.group;
  const Array& lse = call.lse;
  const i64 rows = lse.shape[lse.ndim - 1], all = rows * problem.nhead_q * (group ? 1 : call.batch);
  TILEKILN_TRY(take(call, delta_, sizeof(float) * static_cast<u64>(all), false));
  problem.delta = delta_.as<float>();
  const bool one_piece = (problem.lse_head == rows || problem.nhead_q == 1) &&
                         (group || call.steps.lse == rows * problem.nhead_q || call.batch == 1);
  if (one_piece) return TILEKILN_OK;
  TILEKILN_TRY(take(call, lse_, sizeof(float) * static_cast<u64>(all), false));
  float* to = lse_.as<float>();
  for (int b = 0; b < (group ? 1 : call.batch); ++b) {
    for (int head = 0; head < problem.nhead_q; ++head, to += rows) {
      TILEKILN_TRY(copy(call, to, problem.lse + (group ? 0 : b * call.steps.lse) + head * problem.lse_head,
                        sizeof(float) * static_cast<u64>(rows), Direction::on_device));
    }
  }
  problem.lse = lse_.as<float>();
  problem.lse_head = rows;
  call.steps.lse = group ? 1 : rows * problem.nhead_q;
  for (BwdSequence& s : units.sequences) {
    const i64 place = group ? call.sequences[static_cast<size_t>(s.batch)].place_q : s.batch;
    s.lse = place * call.steps.lse;
  }
  return TILEKILN_OK;
}

}  // namespace tilekiln::fmha
