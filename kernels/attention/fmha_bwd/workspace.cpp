// SPDX-License-Identifier: MIT
// Layout, sizes and schedules of the backward workspace.
#include "kernels/attention/fmha_bwd/workspace.h"

#include <string.h>

#include <algorithm>

namespace tilekiln::fmha {
namespace {

constexpr int64_t host_granule = 4096;  // the host segment is copied by whole pages
constexpr int dies = 8;
constexpr int64_t max_unit = 1 << 30;  // longer than any sequence: then every chunk counts 1

template <class T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
constexpr int64_t round_up(int64_t value, int64_t step) { return ceil_div(value, step) * step; }

// The work of the sequences before each, as it grows; rows are counted in units of `unit`.
struct Work {
  const BwdWorkspaceShape& shape;
  const int32_t *seqstart_q, *seqstart_k;
  int64_t unit = 1;

  int64_t rows(int b)
      const {  // of a chunk of sequence b: never 0, because dk and dv must be written even where there is no query
    const int64_t length = seqstart_q[b + 1] - seqstart_q[b], step = std::max<int64_t>(shape.tile_q, unit);
    return std::max(round_up(length, step), step) / unit;
  }
  int64_t chunks(int b) const { return ceil_div<int64_t>(seqstart_k[b + 1] - seqstart_k[b], shape.tile_k); }
  int64_t of(int b) const { return shape.nhead_q * chunks(b) * rows(b); }
  int64_t total() const {
    int64_t sum = 0;
    for (int b = 0; b < shape.batch; ++b) sum += of(b);
    return sum;
  }
};

// Worker `c`, whose share of the work starts in sequence b, at `before`. Raises the splits of b when the worker runs a
// chunk of it.
CuState start_of(int64_t c, int b, int64_t before, int64_t target, BatchState& state) {
  CuState cu = {};
  cu.ibatch = b;
  cu.w_lo = static_cast<int32_t>(before);
  const int64_t rows = state.sq, head_work = state.nc * rows;
  if (head_work == 0) return cu;
  const int64_t share = c * target;
  const int64_t head = std::max<int64_t>((share - before) / head_work, 0);
  const int64_t into = std::max<int64_t>(share - (before + head * head_work), 0);
  const int64_t chunk = ceil_div(into, rows);
  // The workers that start in this head before this one: one per target_w, or one per chunk when a chunk is more than
  // that.
  const int64_t split = std::min(ceil_div(into, std::max(rows, target)), std::max<int64_t>(state.nc - 1, 0));
  cu.isplit = static_cast<int32_t>(split);
  cu.head_start = static_cast<int32_t>(head);
  cu.c_start = static_cast<int32_t>(chunk);
  cu.w_lo = static_cast<int32_t>(before + head * head_work + chunk * rows);
  if (chunk < state.nc) state.nsplits = std::max(state.nsplits, static_cast<int32_t>(split + 1));
  return cu;
}

// The states of all workers in remapped order, and the splits of all sequences.
void schedule(const Work& work, CuState* cu_states, BatchState* batch_states) {
  const BwdWorkspaceShape& shape = work.shape;
  const int64_t total = work.total(), target = ceil_div<int64_t>(total, shape.workers);
  for (int b = 0; b < shape.batch; ++b) {
    batch_states[b] = {static_cast<int32_t>(work.rows(b)), static_cast<int32_t>(work.chunks(b)), 1, 0};
  }
  // Logical order first, remapped in a second pass: the block of each logical worker is not known from its number
  // alone.
  int64_t before = 0;
  int worker = 0;
  for (int b = 0; b < shape.batch; ++b) {
    const int64_t after = before + work.of(b);
    const int64_t end = std::min<int64_t>(shape.workers, ceil_div(after, target));
    for (; worker < end; ++worker) cu_states[worker] = start_of(worker, b, before, target, batch_states[b]);
    before = after;
  }
  for (; worker < shape.workers; ++worker) {
    cu_states[worker] = {static_cast<int32_t>(total), 0, shape.batch, 0, 0, 0, {0, 0}};
  }
  for (int c = 0; c < shape.workers; ++c) {
    cu_states[c].w_hi = c + 1 < shape.workers ? cu_states[c + 1].w_lo : static_cast<int32_t>(total);
  }
}

// states[block] = states[xcd_map(block)], in place: follows each cycle of the permutation from its smallest member.
void remap(CuState* states, int count) {
  for (int start = 0; start < count; ++start) {
    int least = start;
    for (int at = xcd_map(start, count); at != start; at = xcd_map(at, count)) least = std::min(least, at);
    if (least != start) continue;
    const CuState first = states[start];
    int at = start;
    for (int from = xcd_map(at, count); from != start; from = xcd_map(at, count)) {
      states[at] = states[from];
      at = from;
    }
    states[at] = first;
  }
}

uint64_t pack_group(const BwdWorkspaceShape& shape, const int32_t* seqstart_q, const int32_t* seqstart_k,
                    const BwdWorkspaceLayout& layout, char* host) {
  auto* const nsplits = reinterpret_cast<int32_t*>(host + layout.nsplits);
  auto* const offsets = reinterpret_cast<int64_t*>(host + layout.offsets);
  auto* const cu_states = reinterpret_cast<CuState*>(host + layout.cu_state);
  auto* const batch_states = reinterpret_cast<BatchState*>(host + layout.batch_state);
  if (seqstart_k[shape.batch] == seqstart_k[0]) {
    for (int b = 0; b < shape.batch; ++b) {
      batch_states[b] = {0, 0, 1, 0};
      nsplits[b] = 1;
      offsets[b + 1] = 0;
    }
    for (int c = 0; c < shape.workers; ++c) cu_states[c] = {0, 0, shape.batch, 0, 0, 0, {0, 0}};
    return 0;
  }
  // The states hold work in 32 bits. What does not fit is counted in coarser rows: the schedule only loses evenness.
  Work work = {shape, seqstart_q, seqstart_k};
  while (work.total() + shape.tile_q > INT32_MAX && work.unit < max_unit) work.unit *= 2;
  schedule(work, cu_states, batch_states);
  remap(cu_states, shape.workers);
  for (int b = 0; b < shape.batch; ++b) {
    nsplits[b] = batch_states[b].nsplits;
    const int64_t rows = seqstart_q[b + 1] - seqstart_q[b];
    offsets[b + 1] = offsets[b] + int64_t(shape.nhead_q) * nsplits[b] * rows * shape.hdim_q;
  }
  return 4 * static_cast<uint64_t>(offsets[shape.batch]);
}

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
  layout.host = static_cast<uint64_t>(round_up(static_cast<int64_t>(layout.raw), host_granule));
  return layout;
}

uint64_t pack(const BwdWorkspaceShape& shape, const int32_t* seqstart_q, const int32_t* seqstart_k, void* host) {
  const BwdWorkspaceLayout layout = layout_of(shape);
  memset(host, 0, layout.host);
  char* const bytes = static_cast<char*>(host);
  if (shape.group_schedule()) return pack_group(shape, seqstart_q, seqstart_k, layout, bytes);
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
  jobs.total = int64_t(shape.batch) * shape.nhead_q * jobs.per_head;
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

int xcd_map(int block, int count) {
  const int per_die = ceil_div(count, dies), tall = count % dies == 0 ? dies : count % dies;
  const int die = block % dies, place = block / dies;
  return die < tall ? die * per_die + place : tall * per_die + (die - tall) * (per_die - 1) + place;
}

GroupSchedule schedule_in(const BwdWorkspaceLayout& layout, const void* host) {
  const char* const bytes = static_cast<const char*>(host);
  return {reinterpret_cast<const int32_t*>(bytes + layout.nsplits),
          reinterpret_cast<const int64_t*>(bytes + layout.offsets),
          reinterpret_cast<const CuState*>(bytes + layout.cu_state),
          reinterpret_cast<const BatchState*>(bytes + layout.batch_state)};
}

}  // namespace tilekiln::fmha
