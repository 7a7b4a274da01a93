// SPDX-License-Identifier: MIT
// The stages of a backward call on the host, one after another, each in as many threads as it is worth.
#include <string.h>

#include <algorithm>

#include "kernels/attention/fmha_bwd/buffers.h"
#include "kernels/backends/cpu/parallel.h"

namespace tilekiln::fmha {
namespace {

// Bytes of a unit that zeroes.
constexpr i64 zero_bytes = 1 << 20;

struct HostCall {
  explicit HostCall(BwdCall& call) : call(call), problem(call.problem), units(call) {}

  const BwdEngine& engine(int stage) const { return *static_cast<const BwdEngine*>(call.stages[stage].engine); }
  int dtype() const { return static_cast<int>(problem.features.dtype); }
  int element_bytes() const { return problem.features.dtype == Dtype::fp32 ? 4 : 2; }
  const BwdSequence& sequence(int number) const { return units.sequences[static_cast<size_t>(number)]; }

  BwdCall& call;
  BwdProblem& problem;
  BwdUnits units;
  BwdBuffers buffers;
};

// A stage, or what is left to do for one: unit(number, scratch) for every number in [0, units).
template <class Unit>
tilekiln_status run_stage(const HostCall& host, int stage, i64 units, double work, u64 scratch, Unit&& unit) {
  return launch_stage(host.call, host.call.stages[stage], host.problem, units, work, scratch, unit);
}

tilekiln_status clear_d_sink(const BwdCall& call) {
  if (call.d_sink == nullptr) return TILEKILN_OK;
  return call.backend->fill(call.device, call.native, call.d_sink, 0,
                            sizeof(float) * static_cast<size_t>(call.problem.nhead_q));
}

// ---- places of units in arrays

BwdRows rows_of(const HostCall& host, const BwdUnits::Rows& unit) {
  const BwdSequence& s = host.sequence(unit.sequence);
  BwdRows rows = {};
  rows.batch = s.batch;
  rows.head = unit.head;
  rows.row = unit.row;
  rows.row_end = host.units.row_end(unit);
  rows.out_offset = s.out;
  rows.dout_offset = s.dout;
  rows.lse_offset = s.lse;
  rows.dq_offset = s.dq;
  return rows;
}

i64 mark_of(const BwdSequence& s, int head, int split) { return s.marks + (i64(head) * s.nsplits + split) * s.tiles; }

float* acc_of(const HostCall& host, const BwdSequence& s, int head, int split) {
  return host.buffers.dq_acc + s.acc + (i64(head) * s.nsplits + split) * s.physical_q * host.problem.hdim_q;
}

BwdUnit unit_of(const HostCall& host, const BwdSequence& s, int head, int heads, int key, int keys, int split) {
  const BwdProblem& problem = host.problem;
  const BwdBuffers& buffers = host.buffers;
  BwdUnit unit = {};
  unit.batch = s.batch;
  unit.head = head;
  unit.head_end = head + heads;
  unit.key = key;
  unit.key_end = std::min(key + keys, s.seqlen_k);
  unit.seqlen_q = s.seqlen_q;
  unit.seqlen_k = s.seqlen_k;
  unit.q_offset = s.q;
  unit.k_offset = s.k;
  unit.v_offset = s.v;
  unit.dout_offset = s.dout;
  unit.lse_offset = s.lse;
  unit.dk_offset = s.dk;
  unit.dv_offset = s.dv;
  unit.dbias_offset = s.dbias;
  unit.bias_offset = s.bias;
  unit.alibi_offset = s.alibi;
  unit.randval_offset = s.randval;
  unit.dq_acc = acc_of(host, s, head, split);
  unit.dq_acc_head = s.nsplits * s.physical_q * problem.hdim_q;
  unit.dq_tiles_head = s.nsplits * s.tiles;
  const i64 mark = mark_of(s, head, split);
  if (buffers.locks != nullptr) unit.dq_locks = buffers.locks + mark;
  if (buffers.begun != nullptr) unit.dq_begun = buffers.begun + mark;
  if (host.units.own_heads) {
    const i64 row = s.keys_before * problem.nhead_q + i64(head) * s.seqlen_k;
    unit.dk_acc = buffers.dk_acc.as<float>() + row * problem.hdim_q;
    unit.dv_acc = buffers.dv_acc.as<float>() + row * problem.hdim_v;
  }
  return unit;
}

// ---- stages

tilekiln_status dot_do_o(HostCall& host) {
  const BwdEngine& e = host.engine(TILEKILN_BWD_DOT_DO_O);
  const BwdUnits& units = host.units;
  float* const shares = host.call.d_sink != nullptr ? host.buffers.shares.as<float>() : nullptr;
  const double work = 8.0 * static_cast<double>(units.rows_in_all) * host.problem.nhead_q * host.problem.hdim_v;
  return run_stage(host, TILEKILN_BWD_DOT_DO_O, static_cast<i64>(units.rows.size()), work, 64, [&](i64 i, void*) {
    const float share = e.dot_do_o[host.dtype()](host.problem, rows_of(host, units.rows[static_cast<size_t>(i)]));
    if (shares != nullptr) shares[i] = share;
  });
}

// The shares of d_sink in the order of the units, whoever ran them.
tilekiln_status sum_sink(HostCall& host) {
  if (host.call.d_sink == nullptr) return TILEKILN_OK;
  const std::vector<BwdUnits::Rows>& rows = host.units.rows;
  if (rows.empty()) return clear_d_sink(host.call);
  const float* const shares = host.buffers.shares.as<float>();
  return run_stage(host, TILEKILN_BWD_DOT_DO_O, 1, 0, 64, [&](i64, void*) {
    std::vector<double> sums(static_cast<size_t>(host.problem.nhead_q), 0.0);
    for (size_t i = 0; i < rows.size(); ++i) sums[static_cast<size_t>(rows[i].head)] += static_cast<double>(shares[i]);
    for (size_t head = 0; head < sums.size(); ++head) host.call.d_sink[head] = static_cast<float>(sums[head]);
  });
}

// A launcher's prepare has zeroed what it could know the size of.
tilekiln_status zero_dq_acc(HostCall& host) {
  if (host.call.memory != BwdMemory::prepared || !zeroed_by_stage(host.units.shape)) return TILEKILN_OK;
  char* const start = reinterpret_cast<char*>(host.buffers.dq_acc);
  const i64 bytes = static_cast<i64>(host.buffers.dq_acc_bytes), units = (bytes + zero_bytes - 1) / zero_bytes;
  return run_stage(host, TILEKILN_BWD_DQ_DK_DV, units, static_cast<double>(bytes), 64, [&](i64 i, void*) {
    memset(start + i * zero_bytes, 0, static_cast<size_t>(std::min(zero_bytes, bytes - i * zero_bytes)));
  });
}

void run_keys(const HostCall& host, BwdUnit& unit, const BwdUnit* next, void* scratch) {
  unit.next = next;
  host.engine(TILEKILN_BWD_DQ_DK_DV).chunk[host.dtype()](host.problem, unit, scratch);
}

tilekiln_status unordered_dq_dk_dv(HostCall& host) {
  const BwdUnits& all = host.units;
  const i64 count = static_cast<i64>(all.keys.size()), step = useful_threads(host.call, count, all.work);
  const auto unit_at = [&](i64 i) {
    const BwdUnits::Keys& unit = all.keys[static_cast<size_t>(i)];
    return unit_of(host, host.sequence(unit.sequence), unit.head, all.own_heads ? 1 : all.group, unit.key,
                   all.keys_per_unit, 0);
  };
  return run_stage(host, TILEKILN_BWD_DQ_DK_DV, count, all.work, host.engine(TILEKILN_BWD_DQ_DK_DV).scratch_bytes,
                   [&](i64 i, void* scratch) {
                     BwdUnit unit = unit_at(i);
                     if (i + step >= count) return run_keys(host, unit, nullptr, scratch);
                     const BwdUnit next = unit_at(i + step);  // when all threads go at the same pace
                     run_keys(host, unit, &next, scratch);
                   });
}

// job(sequence, head, chunk, split) for each chunk of a worker that has a key.
template <class Job> void walk(const HostCall& host, int worker, Job&& job) {
  const BwdWorkspaceShape& shape = host.units.shape;
  const auto seen = [&](int b, int head, int c, int split) {
    const BwdSequence& s = host.sequence(b);
    if (i64(c) * shape.tile_k < s.seqlen_k) job(s, head, c, split);
  };
  if (shape.group_schedule()) {
    const GroupSchedule schedule = schedule_in(host.units.layout, host.buffers.schedule);
    walk_group(schedule.cu_states[worker], schedule.batch_states, shape.batch, shape.nhead_q, seen);
  } else {
    walk_batch(shape, batch_jobs(shape), worker, host.problem.features.mask, seen);
  }
}

// Runs each worker's chunks in its own order. Walks cost what their chunks do; the longest is claimed first.
tilekiln_status deterministic_dq_dk_dv(HostCall& host) {
  const int tile_k = host.units.shape.tile_k;
  std::vector<std::pair<double, int>> order;
  for (int worker = 0; worker < host.units.shape.workers; ++worker) {
    double cost = 0;
    walk(host, worker,
         [&](const BwdSequence& s, int, int c, int) { cost += host.units.cost_of(s, c * tile_k, tile_k); });
    if (cost > 0) order.push_back({cost, worker});
  }
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  return run_stage(host, TILEKILN_BWD_DQ_DK_DV, static_cast<i64>(order.size()), host.units.work,
                   host.engine(TILEKILN_BWD_DQ_DK_DV).scratch_bytes, [&](i64 i, void* scratch) {
                     BwdUnit unit = {};
                     bool waiting = false;
                     walk(host, order[static_cast<size_t>(i)].second,
                          [&](const BwdSequence& s, int head, int c, int split) {
                            const BwdUnit next = unit_of(host, s, head, 1, c * tile_k, tile_k, split);
                            if (waiting) run_keys(host, unit, &next, scratch);
                            unit = next;
                            waiting = true;
                          });
                     run_keys(host, unit, nullptr, scratch);
                   });
}

tilekiln_status dq_dk_dv(HostCall& host) {
  return host.problem.features.deterministic ? deterministic_dq_dk_dv(host) : unordered_dq_dk_dv(host);
}

// dk and dv of a group of query heads, added in head order.
tilekiln_status sum_heads(HostCall& host) {
  if (!host.units.own_heads) return TILEKILN_OK;
  const BwdProblem& p = host.problem;
  const int tile_k = host.units.shape.tile_k, group = host.units.group, element = host.element_bytes();
  std::vector<BwdUnits::Keys> parts;
  for (size_t s = 0; s < host.units.sequences.size(); ++s) {
    for (int head = 0; head < p.nhead_k; ++head) {
      for (int c = 0; c < host.units.chunks_of(host.units.sequences[s]); ++c)
        parts.push_back({static_cast<int>(s), head, c * tile_k});
    }
  }
  const double elements = static_cast<double>(host.units.rows_of_heads()) * (p.hdim_q + p.hdim_v);
  const auto sum = host.engine(TILEKILN_BWD_DQ_DK_DV).sum_heads[host.dtype()];
  const float* const dk_acc = host.buffers.dk_acc.as<float>();
  const float* const dv_acc = host.buffers.dv_acc.as<float>();
  return run_stage(host, TILEKILN_BWD_DQ_DK_DV, static_cast<i64>(parts.size()), 8 * elements, 64, [&](i64 i, void*) {
    const BwdUnits::Keys& part = parts[static_cast<size_t>(i)];
    const BwdSequence& s = host.sequence(part.sequence);
    const i64 key = part.key;
    const int rows = std::min(tile_k, s.seqlen_k - part.key);
    const i64 from = s.keys_before * p.nhead_q + i64(part.head) * group * s.seqlen_k + key;
    sum(static_cast<char*>(p.dk) + element * (s.dk + part.head * p.dk_head + key * p.dk_row), p.dk_row,
        dk_acc + from * p.hdim_q, i64(s.seqlen_k) * p.hdim_q, group, rows, p.hdim_q);
    sum(static_cast<char*>(p.dv) + element * (s.dv + part.head * p.dv_head + key * p.dv_row), p.dv_row,
        dv_acc + from * p.hdim_v, i64(s.seqlen_k) * p.hdim_v, group, rows, p.hdim_v);
  });
}

// A sequence without a key has no dq_acc to read when no sequence has one. 0 is all bits 0 in every dtype.
void clear_dq(const HostCall& host, const BwdRows& rows) {
  const BwdProblem& p = host.problem;
  const int element = host.element_bytes();
  char* const dq = static_cast<char*>(p.dq) + element * (rows.dq_offset + rows.head * p.dq_head);
  for (i64 row = rows.row; row < rows.row_end; ++row)
    memset(dq + element * row * p.dq_row, 0, static_cast<size_t>(element * p.hdim_q));
}

tilekiln_status convert_dq(HostCall& host) {
  const BwdEngine& e = host.engine(TILEKILN_BWD_CONVERT_DQ);
  const BwdUnits& units = host.units;
  const int nsplits = units.sequences.front().nsplits;
  const double work =
      8.0 * static_cast<double>(units.rows_in_all) * host.problem.nhead_q * host.problem.hdim_q * nsplits;
  return run_stage(host, TILEKILN_BWD_CONVERT_DQ, static_cast<i64>(units.rows.size()), work, 64, [&](i64 i, void*) {
    const BwdUnits::Rows& unit = units.rows[static_cast<size_t>(i)];
    const BwdSequence& s = host.sequence(unit.sequence);
    BwdRows rows = rows_of(host, unit);
    if (s.seqlen_k == 0) return clear_dq(host, rows);
    rows.nsplits = s.nsplits;
    rows.dq_acc = acc_of(host, s, unit.head, 0);
    rows.dq_acc_split = s.physical_q * host.problem.hdim_q;
    if (host.buffers.begun != nullptr) rows.dq_begun = host.buffers.begun + mark_of(s, unit.head, 0);
    rows.dq_begun_split = s.tiles;
    e.convert_dq[host.dtype()](host.problem, rows);
  });
}

// The accumulator of a prepared workspace is used up; a run over it without another prepare would add to it.
tilekiln_status spoil_prepared(HostCall& host) {
  const BwdCall& call = host.call;
  if (call.memory != BwdMemory::prepared || !zeroed_by_prepare(host.units.shape)) return TILEKILN_OK;
  return call.backend->fill(call.device, call.native, host.buffers.workspace, 0, host.units.layout.raw);
}

constexpr tilekiln_status (*steps[])(HostCall&) = {dot_do_o,  sum_sink,   zero_dq_acc,   dq_dk_dv,
                                                   sum_heads, convert_dq, spoil_prepared};

tilekiln_status run_on_host(BwdCall& call) {
  if (call.batch == 0 || call.problem.nhead_q == 0) return clear_d_sink(call);
  HostCall host(call);
  TILEKILN_TRY(host.buffers.get(call, host.units));
  for (const auto step : steps) TILEKILN_TRY(step(host));
  return TILEKILN_OK;
}

}  // namespace

tilekiln_status run_bwd(BwdCall& call) {
  if (!call.backend->takes_units) return run_kernels(call);
  if (call.unread) {
    call.workers = shape_of(call).workers;  // those that the size of its workspace was said for
    TILEKILN_TRY(read_sequences(&call));
  }
  return run_on_host(call);
}

tilekiln_status launch(BwdCall& call) {
  if (call.memory == BwdMemory::given) {
    uint64_t needed = 0;
    TILEKILN_TRY(workspace_size(call, &needed));
    TILEKILN_TRY(check_workspace_size(call.workspace, needed));
  }
  return run_in_stream<BwdCall, run_bwd>(call);
}

}  // namespace tilekiln::fmha
