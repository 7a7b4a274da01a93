// SPDX-License-Identifier: MIT
// Layout, sizes and schedules of the backward workspace.
#include "kernels/attention/fmha_bwd/workspace.h"

#include <string.h>

#include <algorithm>

namespace tilekiln::fmha {
namespace {

template <class T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
constexpr int64_t round_up(int64_t value, int64_t step) { return ceil_div(value, step) * step; }

}  // namespace

BwdWorkspaceLayout layout_of(const BwdWorkspaceShape& shape) {
  BwdWorkspaceLayout layout;
  const auto segment = [&](int64_t bytes) {
    const uint64_t at = layout.raw;
    layout.raw += static_cast<uint64_t>(round_up(bytes, 16));
    return at;
  };
  const int64_t batch = shape.batch;
  layout.nsplits_count = shape.group_schedule() ? shape.batch : 1;
  layout.nsplits = segment(4 * int64_t(layout.nsplits_count));
  if (shape.group_schedule()) {
    layout.offsets = segment(8 * (batch + 1));
    layout.cu_state = segment(int64_t(sizeof(CuState)) * shape.workers);
    layout.batch_state = segment(int64_t(sizeof(BatchState)) * batch);
  }
  layout.host = static_cast<uint64_t>(round_up(static_cast<int64_t>(layout.raw), shape.granule));
  return layout;
}

uint64_t pack(const BwdWorkspaceShape& shape, const int32_t* seqstart_q, const int32_t* seqstart_k, void* host) {
  const BwdWorkspaceLayout layout = layout_of(shape);
  memset(host, 0, layout.host);
  char* const bytes = static_cast<char*>(host);
  if (shape.group_schedule()) {
    auto* const offsets = reinterpret_cast<int64_t*>(bytes + layout.offsets);
    const auto ints = [&](uint64_t at) { return reinterpret_cast<int32_t*>(bytes + at); };
    const auto length = [](const int32_t* starts) { return [=](int b) { return starts[b + 1] - starts[b]; }; };
    pack_group(ints(layout.nsplits), offsets, ints(layout.cu_state), ints(layout.batch_state), shape.batch,
               shape.walked_heads(), shape.nhead_q, shape.hdim_q, static_cast<unsigned>(shape.tile_q),
               static_cast<unsigned>(shape.tile_k), static_cast<unsigned>(shape.workers), length(seqstart_q),
               length(seqstart_k), 0, 1, [] {});
    return 4 * static_cast<uint64_t>(offsets[shape.batch]);
  }
  const int32_t nsplits = shape.deterministic ? batch_jobs(shape).nsplits : 1;
  memcpy(bytes + layout.nsplits, &nsplits, sizeof(nsplits));
  const int64_t rows = shape.group ? seqstart_q[shape.batch] : shape.batch * shape.seqlen_q;
  return 4 * static_cast<uint64_t>(shape.nhead_q) * static_cast<uint64_t>(nsplits) * static_cast<uint64_t>(rows) *
         static_cast<uint64_t>(shape.hdim_q);
}

uint64_t dq_acc_upper_bound(const BwdWorkspaceShape& shape, int64_t total_q, int64_t max_seqlen_k) {
  int64_t factor = 1;
  if (shape.group_schedule()) {
    factor = ceil_div<int64_t>(max_seqlen_k, shape.tile_k);
  } else if (shape.batch_schedule()) {
    BwdWorkspaceShape most = shape;
    most.seqlen_k = max_seqlen_k;
    factor = batch_jobs(most).nsplits;
  }
  return 4 * static_cast<uint64_t>(shape.nhead_q) * static_cast<uint64_t>(factor) * static_cast<uint64_t>(total_q) *
         static_cast<uint64_t>(shape.hdim_q);
}

int default_workers(const BwdWorkspaceShape& shape, int64_t rows, int64_t longest) {
  // Splits of a head have a price: each is one more place of dq_acc to write and to add up: 32 workers in place of 16 take 0 to 3 % more
  // time (8 heads of 2048 rows, 16 of 1024), 64 take 5 %. Each worker less may leave a thread idle: 16 heads on 7 threads
  // are 1.31 of the mean for the busiest, 32 workers 1.09.
  constexpr int64_t most = 64, enough = 32;
  const int64_t heads = std::max<int64_t>(int64_t(shape.batch) * shape.nhead_q, 1);
  if (heads >= enough) return static_cast<int>(ceil_div(heads, ceil_div(heads, most)));
  // Sequences of group mode differ: their keys are taken to be as many as their queries, but not more than the longest
  // has.
  int64_t chunks = ceil_div<int64_t>(longest, shape.tile_k);
  if (shape.group && shape.batch > 0) {
    const int64_t mean = ceil_div(ceil_div<int64_t>(rows, shape.batch), int64_t(shape.tile_k));
    chunks = std::min(chunks, std::max(mean, ceil_div<int64_t>(chunks, shape.batch)));
  }
  const int64_t splits = std::clamp<int64_t>(chunks, 1, ceil_div(enough, heads));
  return static_cast<int>(heads * splits);
}

BatchJobs batch_jobs(const BwdWorkspaceShape& shape) {
  BatchJobs jobs;
  jobs.per_head = ceil_div<int64_t>(shape.seqlen_k, shape.tile_k);
  jobs.total = int64_t(shape.batch) * shape.walked_heads() * jobs.per_head;
  jobs.per_worker = ceil_div<int64_t>(jobs.total, shape.workers);
  if (jobs.total == 0 || jobs.per_worker % jobs.per_head == 0) {
    jobs.nsplits = 1;
  } else if (jobs.per_head % jobs.per_worker == 0) {
    jobs.nsplits = static_cast<int>(jobs.per_head / jobs.per_worker);
  } else {
    jobs.nsplits = static_cast<int>(1 + ceil_div(jobs.per_head - 1, jobs.per_worker));
  }
  return jobs;
}

GroupSchedule schedule_in(const BwdWorkspaceLayout& layout, const void* host) {
  const char* const bytes = static_cast<const char*>(host);
  return {reinterpret_cast<const int32_t*>(bytes + layout.nsplits),
          reinterpret_cast<const int64_t*>(bytes + layout.offsets),
          reinterpret_cast<const CuState*>(bytes + layout.cu_state),
          reinterpret_cast<const BatchState*>(bytes + layout.batch_state)};
}

}  // namespace tilekiln::fmha
