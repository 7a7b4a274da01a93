// SPDX-License-Identifier: MIT
// The unified workspace of the backward pass and the schedules that fill it. Host code: no ISA, no engine, no
// allocation.
//
// One block of memory: a host segment, packed on the host and copied to the head, and behind it the fp32 accumulator of
// dq.
//
//   nsplits[batch or 1] | offsets[batch + 1] | cu_state[workers] | batch_state[batch] | pad to the granule | dq_acc
//
// offsets, cu_state and batch_state are there in deterministic group mode only. dq_acc of a sequence is
// [nhead_q, nsplits, physical seqlen_q, hdim_q]. A slot is one (head, split) of it: no two workers add to one slot, and
// each adds to a slot in its own order, which is what makes the sum deterministic.
#pragma once
#include <stddef.h>
#include <stdint.h>

#ifndef TILEKILN_DEVICE
#define TILEKILN_DEVICE inline
#endif
#include "kernels/attention/fmha_bwd/schedule.h"

namespace tilekiln::fmha {

// The numbers that decide the layout. `workers` are logical: they stand for compute units and belong to the problem.
struct BwdWorkspaceShape {
  bool group = false, deterministic = false;
  int batch = 0, nhead_q = 0, hdim_q = 0;
  int tile_q = 0, tile_k = 0;  // queries and keys of the main stage's tile
  int workers = 0;
  int heads =
      0;  // that a worker walks: nhead_q, or nhead_k where a unit takes every query head of a key head. 0: nhead_q
  int granule = 4096;                  // of the host segment. On CPUs vectors of dq_acc lie in lines of the cache
  int64_t seqlen_q = 0, seqlen_k = 0;  // batch mode: of each sequence

  int walked_heads() const { return heads != 0 ? heads : nhead_q; }
  bool group_schedule() const { return group && deterministic; }
  bool batch_schedule() const { return !group && deterministic; }
};

// The share of a worker and its start: the work [w_lo, w_hi), counted in rows of chunks along (batch, head, chunk).
struct alignas(16) CuState { int32_t w_lo, w_hi, ibatch, isplit, head_start, c_start, unused[2]; };
static_assert(sizeof(CuState) == 32);

struct alignas(16) BatchState {
  int32_t sq;  // work of a chunk: its query rows, rounded up to tile_q
  int32_t nc;  // chunks
  int32_t nsplits, unused;
};
static_assert(sizeof(BatchState) == 16);

constexpr uint64_t absent = UINT64_MAX;

// Byte offsets; `absent` where there is no such segment.
struct BwdWorkspaceLayout {
  uint64_t nsplits = absent, offsets = absent, cu_state = absent, batch_state = absent;
  uint64_t raw = 0;   // bytes used of the host segment
  uint64_t host = 0;  // bytes of it, and where dq_acc starts
  int nsplits_count = 0;
};
BwdWorkspaceLayout layout_of(const BwdWorkspaceShape& shape);

// The chunks of all heads that a schedule can count.
constexpr int64_t max_scheduled_chunks = 1 << 30;

// Writes the host segment (layout.host bytes, aligned to 16) and returns the bytes of dq_acc. The starts are read in
// group mode only: batch + 1 entries, never decreasing. Throws nothing.
uint64_t pack(const BwdWorkspaceShape& shape, const int32_t* seqstart_q, const int32_t* seqstart_k, void* host);

// The most bytes dq_acc can need for any starts: at most `batch` sequences with total_q rows together, padding
// included, and max_seqlen_k keys each.
uint64_t dq_acc_upper_bound(const BwdWorkspaceShape& shape, int64_t total_q, int64_t max_seqlen_k);

// The logical workers of a problem of `rows` query rows together whose longest sequence has `longest` keys: enough that
// a machine of many cores has work where heads are few, and so few that the splits of dq cost little. Never depends on
// the threads there are, and is known before any seqstart is.
int default_workers(const BwdWorkspaceShape& shape, int64_t rows, int64_t longest);

// Tells whether preparing the workspace zeroes dq_acc.
inline bool zeroed_by_prepare(const BwdWorkspaceShape& shape) { return !shape.group_schedule(); }
// Tells whether a stage before the main one zeroes it instead: its size is then known on the device only. Heads do not all
// own every slot (more than half of random schedules leave some unowned), so each must be zero before the sum.
inline bool zeroed_by_stage(const BwdWorkspaceShape& shape) { return shape.group_schedule(); }

// ---- deterministic batch mode: jobs (batch, head, chunk) cut into runs of equal count

struct BatchJobs {
  int64_t per_head, total, per_worker;
  int nsplits;
};
BatchJobs batch_jobs(const BwdWorkspaceShape& shape);

// The parts of a packed host segment.
struct GroupSchedule {
  const int32_t* nsplits;
  const int64_t* offsets;  // in elements
  const CuState* cu_states;
  const BatchState* batch_states;
};
GroupSchedule schedule_in(const BwdWorkspaceLayout& layout, const void* host);

// ---- the walk of one worker: job(batch, head, chunk, split) for each of its units, in order

template <class Job>
void walk_batch(const BwdWorkspaceShape& shape, const BatchJobs& jobs, int worker, bool masked, Job&& job) {
  auto walk = batch_walk(worker, jobs.total, static_cast<int>(jobs.per_head), jobs.per_worker, shape.walked_heads());
  for (ScheduledUnit u; next_unit(walk, masked, u);) job(u.batch, u.head, u.chunk, u.split);
}

template <class Job>
void walk_group(const CuState& state, const BatchState* batches, int batch, int nhead, Job&& job) {
  GroupWalk walk = group_walk(&state.w_lo, batch, nhead);
  for (ScheduledUnit u; next_unit(walk, &batches->sq, u);) job(u.batch, u.head, u.chunk, u.split);
}

}  // namespace tilekiln::fmha
