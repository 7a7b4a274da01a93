// SPDX-License-Identifier: MIT
// The workspace and schedule of a backward call on HIP: kernels/attention/fmha_bwd/workspace.h's, packed by the device,
// which alone may know where sequences start.
#pragma once
#include "kernels/attention/bwd_engine.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/hip/problem.h"
#include "kernels/attention/fmha_bwd/workspace.h"

namespace tilekiln::hip {
namespace {

using fmha::BwdKernelProblem;
using fmha::BwdProblem;
using fmha::i64;
using fmha::u64;

i64 parts(i64 all, i64 each) { return (all + each - 1) / each; }

// Logical workers where the call says none: as many as the largest device has compute units, and more than one a unit
// of the others.
constexpr int most_units_of_a_device = 304;

fmha::BwdWorkspaceShape shape_of(const BwdKernelProblem& of, const BackwardBuild& build) {
  const BwdProblem& p = of.problem;
  fmha::BwdWorkspaceShape shape;
  shape.group = p.features.group;
  shape.deterministic = p.features.deterministic;
  shape.batch = of.batch;
  shape.nhead_q = p.nhead_q;
  shape.hdim_q = p.hdim_q != 0 ? p.hdim_q : of.hdim_q;  // a launcher's bound is of the instance's
  shape.tile_q = build.tile_q;
  shape.tile_k = build.tile_k;
  shape.workers = of.workers != 0 ? of.workers : most_units_of_a_device;
  shape.heads = p.nhead_k;
  shape.granule = 16;
  shape.seqlen_q = of.seqlen_q;
  shape.seqlen_k = of.seqlen_k;
  return shape;
}

// The workspace (fmha_bwd/workspace.h), and D of every row behind it: the bytes. Starts that only the device knows
// leave the most that dq can need.
u64 place_workspace(const BwdKernelProblem& of, const fmha::BwdWorkspaceShape& shape, BackwardProblem* row) {
  row->rows = shape.group ? of.total_q : i64(of.batch) * of.seqlen_q;
  const fmha::BwdWorkspaceLayout layout = fmha::layout_of(shape);
  const u64 dq = (fmha::dq_acc_upper_bound(shape, row->rows, of.seqlen_k) + 15) / 16 * 16;
  const auto ints = [&](u64 at) { return reinterpret_cast<int*>(of.workspace + at); };
  row->nsplits = ints(layout.nsplits);
  if (shape.group_schedule()) {
    row->offsets = reinterpret_cast<i64*>(of.workspace + layout.offsets);
    row->cu_state = ints(layout.cu_state);
    row->batch_state = ints(layout.batch_state);
  }
  row->dq_acc = reinterpret_cast<float*>(of.workspace + layout.host);
  row->acc_elements = static_cast<i64>(dq / 4);
  row->delta = reinterpret_cast<float*>(of.workspace + layout.host + dq);
  return layout.host + dq + static_cast<u64>(shape.nhead_q) * static_cast<u64>(row->rows) * 4;
}

// The workers of the main stage: those that have a unit.
i64 fill_schedule(const fmha::BwdWorkspaceShape& shape, BackwardProblem* to) {
  to->splits = 1;
  to->workers = shape.workers;
  if (!shape.deterministic) return 0;
  to->features |= shape.group ? kBwdGroupWalk : kBwdBatchWalk;
  if (shape.group) return shape.workers;
  const fmha::BatchJobs jobs = fmha::batch_jobs(shape);
  to->splits = jobs.nsplits;
  to->total_units = static_cast<int>(jobs.total);
  to->units_a_head = static_cast<int>(jobs.per_head);
  to->units_a_worker = static_cast<int>(jobs.per_worker);
  return jobs.total == 0 ? 0 : parts(jobs.total, jobs.per_worker);
}

}  // namespace
}  // namespace tilekiln::hip
