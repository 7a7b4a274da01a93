// SPDX-License-Identifier: MIT
// The workspace of a call: its shape and size.
#include "kernels/attention/fmha_bwd/call.h"
#include "kernels/generated/fmha_bwd_dq_dk_dv.h"
#include "kernels/runtime/backend.h"

namespace tilekiln::fmha {

BwdWorkspaceShape shape_of(const BwdCall& call) {
  const uint32_t* const fields = call.stages[TILEKILN_BWD_DQ_DK_DV].how->fields;
  const BwdProblem& problem = call.problem;
  BwdWorkspaceShape shape;
  shape.group = problem.features.group;
  shape.deterministic = problem.features.deterministic;
  shape.batch = call.batch;
  shape.nhead_q = problem.nhead_q;
  shape.hdim_q = problem.hdim_q;
  shape.tile_q = static_cast<int>(fields[fmha_bwd_dq_dk_dv::fields::tile_q]);
  shape.tile_k = static_cast<int>(fields[fmha_bwd_dq_dk_dv::fields::tile_k]);
  i64 rows = call.batch * call.physical_q, longest = call.physical_k;
  if (shape.group) {
    rows = call.unread ? call.physical_q : 0;
    if (!call.unread && call.batch > 0) rows = call.sequences.end()[-1].place_q + call.sequences.end()[-1].room_q;
    longest = call.longest_k;
  } else {
    shape.seqlen_q = call.physical_q;
    shape.seqlen_k = call.physical_k;
  }
  shape.workers = call.workers != 0 ? call.workers : default_workers(shape, rows, longest);
  return shape;
}

void set_starts(const BwdCall& call, BwdStarts* starts) {
  if (!call.problem.features.group) return;
  const size_t batch = static_cast<size_t>(call.batch);
  starts->q.reset(batch + 1);
  starts->k.reset(batch + 1);
  starts->q[batch] = starts->k[batch] = 0;
  for (size_t b = 0; b < batch; ++b) {
    const Sequence& s = call.sequences[b];
    starts->q[b] = static_cast<int32_t>(s.place_q);
    starts->k[b] = static_cast<int32_t>(s.place_k);
    starts->q[b + 1] = static_cast<int32_t>(s.place_q + s.room_q);
    starts->k[b + 1] = static_cast<int32_t>(s.place_k + s.room_k);
  }
}

tilekiln_status workspace_size(const BwdCall& call, uint64_t* bytes) {
  if (!call.backend->takes_units) return kernels_workspace_size(call, bytes);
  const BwdWorkspaceShape shape = shape_of(call);
  if (call.unread && shape.group) {
    *bytes = layout_of(shape).host + dq_acc_upper_bound(shape, call.physical_q, call.longest_k);
    return TILEKILN_OK;
  }
  BwdStarts starts;
  set_starts(call, &starts);
  // Only the schedule itself knows the splits: it is made and forgotten.
  const BwdWorkspaceLayout layout = layout_of(shape);
  SmallArray<CuState, 16> host;
  host.reset(layout.host / sizeof(CuState));
  *bytes = layout.host + pack(shape, starts.q.begin(), starts.k.begin(), host.begin());
  return TILEKILN_OK;
}

tilekiln_status check_schedule(const BwdWorkspaceShape& shape, i64 keys) {
  // Bound: each sequence may end within a chunk.
  const i64 chunks = shape.nhead_q * (keys / shape.tile_k + shape.batch);
  if (!shape.group_schedule() || chunks <= max_scheduled_chunks) return TILEKILN_OK;
  return fail_argument("deterministic",
                       "was 1 with %lld chunks of keys over all heads, must be 0 above %lld in group mode", chunks,
                       static_cast<i64>(max_scheduled_chunks));
}

tilekiln_status check_workspace_size(const Array& workspace, u64 needed) {
  const u64 have = static_cast<u64>(workspace.shape[0]);
  if (have >= needed) return TILEKILN_OK;
  return fail_argument("workspace", "had %llu bytes, must have %llu", have, needed);
}

}  // namespace tilekiln::fmha
