// The stages of a backward call, one after another, each in as many threads as it is worth.
#include <string.h>

#include <algorithm>

#include "kernels/attention/fmha_bwd/sequences.h"
#include "kernels/backends/cpu/parallel.h"
#include "kernels/backends/cpu/scratch.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::fmha {
namespace {

// Rows of a unit of the first and the last stage, in tiles. Belongs to the problem: the shares of d_sink are summed by
// unit.
constexpr int tiles_per_unit = 4;
// Bytes of a unit that zeroes.
constexpr i64 zero_bytes = 1 << 20;

struct RowsUnit { int sequence, head, row; };
struct KeysUnit { int sequence, head, key; };

class Run {
 public:
  explicit Run(BwdCall& call)
      : call_(call),
        p_(call.problem),
        steps_(call.steps),
        shape_(shape_of(call)),
        layout_(layout_of(shape_)),
        tile_q_(shape_.tile_q),
        tile_k_(shape_.tile_k),
        step_k_(tile_k_ / unit_parts),
        group_(p_.nhead_q / p_.nhead_k),
        dtype_(static_cast<int>(p_.features.dtype)),
        element_(p_.features.dtype == Dtype::fp32 ? 4 : 2) {}

  tilekiln_status run() {
    if (call_.batch == 0 || p_.nhead_q == 0) return finish_without_work();
    make_sequences(call_, tile_q_, step_k_, &sequences_, &cost_);
    list_rows();
    list_units();
    TILEKILN_TRY(get_memory());
    TILEKILN_TRY(dot_do_o());
    TILEKILN_TRY(sum_sink());
    TILEKILN_TRY(zero());
    TILEKILN_TRY(dq_dk_dv());
    TILEKILN_TRY(sum_heads());
    TILEKILN_TRY(convert_dq());
    // The accumulator of a prepared workspace is used up; a run over it without another prepare would add to it.
    if (call_.memory == BwdMemory::prepared && zeroed_by_prepare(shape_, p_.features.mask))
      return fill(workspace_, 0, layout_.raw);
    return TILEKILN_OK;
  }

 private:
  const BwdEngine& engine(int stage) const { return *static_cast<const BwdEngine*>(call_.stages[stage].engine); }

  tilekiln_status finish_without_work() {
    return call_.d_sink == nullptr ? TILEKILN_OK
                                   : fill(call_.d_sink, 0, sizeof(float) * static_cast<size_t>(p_.nhead_q));
  }

  tilekiln_status fill(void* to, int byte, size_t bytes) {
    return call_.backend->fill(call_.device, call_.native, to, byte, bytes);
  }
  tilekiln_status copy(void* to, const void* from, size_t bytes, Direction direction) {
    return call_.backend->copy(call_.device, call_.native, to, from, bytes, direction);
  }
  // A stage, or what is left to do for one: unit(number, scratch) for every number in [0, units).
  template <class Unit>
  tilekiln_status stage(int which, i64 units, double work, u64 scratch, Unit&& unit) {
    return launch_stage(call_, call_.stages[which], p_, units, work, scratch, unit);
  }
  tilekiln_status take(CallMemory& memory, u64 bytes, bool zero) {
    if (bytes == 0) return TILEKILN_OK;
    const tilekiln_status status = memory.get(call_, bytes, zero ? 0 : -1);
    if (status != TILEKILN_OUT_OF_MEMORY) return status;
    return fail(status, "no memory for %llu bytes of workspace; nothing was written", bytes);
  }

  void list_rows() {
    const int step = tile_q_ * tiles_per_unit;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      rows_in_all_ += sequences_[s].seqlen_q;
      for (int head = 0; head < p_.nhead_q; ++head) {
        for (int row = 0; row < sequences_[s].seqlen_q; row += step) rows_.push_back({static_cast<int>(s), head, row});
      }
    }
  }

  BwdRows rows_of(const RowsUnit& unit) const {
    const BwdSequence& s = sequences_[static_cast<size_t>(unit.sequence)];
    BwdRows rows = {};
    rows.batch = s.batch;
    rows.head = unit.head;
    rows.row = unit.row;
    rows.row_end = std::min(unit.row + tile_q_ * tiles_per_unit, s.seqlen_q);
    rows.out_offset = s.out;
    rows.dout_offset = s.dout;
    rows.lse_offset = s.lse;
    rows.dq_offset = s.dq;
    return rows;
  }

  double cost_of(const BwdSequence& s, int key, int keys) const {
    double sum = 0;
    for (int end = std::min(key + keys, s.seqlen_k); key < end; key += step_k_)
      sum += cost_[static_cast<size_t>(s.costs_before + key / step_k_)];
    return sum;
  }
  int chunks_of(const BwdSequence& s) const { return (s.seqlen_k + tile_k_ - 1) / tile_k_; }

  // The units of a call that need not be deterministic, those that cost most first.
  void list_units() {
    i64 units = 0;
    for (const BwdSequence& s : sequences_) {
      units += i64(p_.nhead_k) * chunks_of(s);
      work_ += cost_of(s, 0, s.seqlen_k) * p_.nhead_q;
    }
    work_ *= 2 * p_.hdim_v + 3 * p_.hdim_q;
    const bool deterministic = p_.features.deterministic;
    // A unit per query head where those of a group together would leave threads idle.
    const int all_useful = useful_threads(call_, units * group_ * unit_parts, work_);
    own_heads_ = group_ > 1 && (deterministic || units < 4 * all_useful);
    if (deterministic) return;
    const int heads = own_heads_ ? p_.nhead_q : p_.nhead_k;
    const auto for_each = [&](int keys, auto&& unit) {
      for (size_t s = 0; s < sequences_.size(); ++s) {
        for (int head = 0; head < heads; ++head) {
          for (int key = 0; key < sequences_[s].seqlen_k; key += keys) unit(static_cast<int>(s), head, key);
        }
      }
    };
    if (own_heads_) units *= group_;
    // Many units need no look at their costs.
    if (units < 8 * all_useful) {
      unit_k_ = keys_per_unit(tile_k_, all_useful, [&](int keys) {
        std::vector<double> costs;
        for_each(keys,
                 [&](int s, int, int key) { costs.push_back(cost_of(sequences_[static_cast<size_t>(s)], key, keys)); });
        return costs;
      });
    }
    units_.reserve(static_cast<size_t>(units * (tile_k_ / unit_k_)));
    for_each(unit_k_, [&](int s, int head, int key) { units_.push_back({s, own_heads_ ? head : head * group_, key}); });
    if (call_.uniform && !p_.features.mask) return;  // all alike
    if (useful_threads(call_, static_cast<i64>(units_.size()), work_) == 1) return;
    std::stable_sort(units_.begin(), units_.end(), [&](const KeysUnit& a, const KeysUnit& b) {
      return cost_of(sequences_[static_cast<size_t>(a.sequence)], a.key, unit_k_) >
             cost_of(sequences_[static_cast<size_t>(b.sequence)], b.key, unit_k_);
    });
  }

  tilekiln_status get_memory() {
    u64 scratch = 64;
    for (int stage = 0; stage < TILEKILN_BWD_STAGES; ++stage) scratch = std::max(scratch, engine(stage).scratch_bytes);
    if (thread_scratch(scratch) == nullptr) {
      return fail(TILEKILN_OUT_OF_MEMORY, "no memory for %llu bytes of scratch; nothing was written", scratch);
    }
    TILEKILN_TRY(get_workspace());
    TILEKILN_TRY(get_delta());
    i64 marks = 0;
    for (BwdSequence& s : sequences_) {
      s.marks = marks;
      marks += s.tiles * s.nsplits * p_.nhead_q;
    }
    if (call_.d_sink != nullptr) TILEKILN_TRY(take(shares_, sizeof(float) * rows_.size(), true));
    const BwdSequence& last = sequences_.back();
    if (own_heads_) {
      const u64 rows = static_cast<u64>(last.keys_before + last.seqlen_k) * static_cast<u64>(p_.nhead_q);
      TILEKILN_TRY(take(dk_acc_, sizeof(float) * rows * static_cast<u64>(p_.hdim_q), false));
      TILEKILN_TRY(take(dv_acc_, sizeof(float) * rows * static_cast<u64>(p_.hdim_v), false));
    }
    if (!p_.features.deterministic && useful_threads(call_, static_cast<i64>(units_.size()), work_) > 1) {
      TILEKILN_TRY(take(locks_, static_cast<u64>(marks), true));
      locked_ = true;
    }
    // What a launcher has prepared is clear. Else a tile of dq_acc is stored before it is added to.
    if (call_.memory != BwdMemory::prepared) TILEKILN_TRY(take(begun_, static_cast<u64>(marks), true));
    return TILEKILN_OK;
  }

  tilekiln_status get_workspace() {
    BwdStarts starts;
    set_starts(call_, &starts);
    const bool prepared = call_.memory == BwdMemory::prepared;
    uint64_t needed = 0;
    TILEKILN_TRY(workspace_size(call_, &needed));
    if (call_.memory == BwdMemory::own) {
      TILEKILN_TRY(take(own_, needed, false));
      workspace_ = own_.as<char>();
    } else {
      TILEKILN_TRY(check_workspace_size(call_.workspace, needed));
      workspace_ = call_.workspace.data;
    }
    // A prepared host segment is compared with what it must be, because a wrong one would send workers anywhere.
    const bool apart = prepared || !call_.backend->host_memory;
    if (apart) packed_.resize((layout_.host + 7) / 8);
    schedule_ = apart ? reinterpret_cast<char*>(packed_.data()) : workspace_;
    device_bytes_ = pack(shape_, starts.q.begin(), starts.k.begin(), schedule_);
    if (prepared) TILEKILN_TRY(check_prepared());
    dq_acc_ = reinterpret_cast<float*>(workspace_ + layout_.host);
    const GroupSchedule schedule = schedule_in(layout_, schedule_);
    const i64 head = p_.hdim_q;
    for (BwdSequence& s : sequences_) {
      if (shape_.group_schedule()) {
        s.nsplits = schedule.nsplits[s.batch];
        s.acc = schedule.offsets[s.batch];
      } else {
        s.nsplits = schedule.nsplits[0];
        const i64 rows_before = shape_.group ? starts.q[static_cast<size_t>(s.batch)] : s.batch * call_.physical_q;
        s.acc = rows_before * s.nsplits * p_.nhead_q * head;
      }
    }
    return TILEKILN_OK;
  }

  tilekiln_status check_prepared() {
    std::vector<u64> found((layout_.raw + 7) / 8);
    TILEKILN_TRY(copy(found.data(), workspace_, layout_.raw, Direction::to_host));
    if (memcmp(schedule_, found.data(), layout_.raw) == 0) return TILEKILN_OK;
    return fail_argument(
        "workspace",
        "was not prepared for these sequences, must be prepared by this launcher with their starts, for every run");
  }

  // delta lies as lse does. Where lse is not one piece, both get a place of their own.
  tilekiln_status get_delta() {
    if (p_.delta != nullptr) return TILEKILN_OK;
    const Array& lse = call_.lse;
    const i64 rows = lse.shape[lse.ndim - 1], all = rows * p_.nhead_q * (shape_.group ? 1 : call_.batch);
    TILEKILN_TRY(take(delta_, sizeof(float) * static_cast<u64>(all), false));
    p_.delta = delta_.as<float>();
    const bool one_piece = (p_.lse_head == rows || p_.nhead_q == 1) &&
                           (shape_.group || steps_.lse == rows * p_.nhead_q || call_.batch == 1);
    if (one_piece) return TILEKILN_OK;
    TILEKILN_TRY(take(lse_, sizeof(float) * static_cast<u64>(all), false));
    float* to = lse_.as<float>();
    for (int b = 0; b < (shape_.group ? 1 : call_.batch); ++b) {
      for (int head = 0; head < p_.nhead_q; ++head, to += rows) {
        TILEKILN_TRY(copy(to, p_.lse + (shape_.group ? 0 : b * steps_.lse) + head * p_.lse_head,
                          sizeof(float) * static_cast<u64>(rows), Direction::on_device));
      }
    }
    p_.lse = lse_.as<float>();
    p_.lse_head = rows;
    steps_.lse = shape_.group ? 1 : rows * p_.nhead_q;
    for (BwdSequence& s : sequences_) {
      const i64 place = shape_.group ? call_.sequences[static_cast<size_t>(s.batch)].place_q : s.batch;
      s.lse = place * steps_.lse;
    }
    return TILEKILN_OK;
  }

  tilekiln_status dot_do_o() {
    const BwdEngine& e = engine(TILEKILN_BWD_DOT_DO_O);
    float* const shares = call_.d_sink != nullptr ? shares_.as<float>() : nullptr;
    const double work = 8.0 * static_cast<double>(rows_in_all_) * p_.nhead_q * p_.hdim_v;
    return stage(TILEKILN_BWD_DOT_DO_O, static_cast<i64>(rows_.size()), work, 64, [&](i64 i, void*) {
      const float share = e.dot_do_o[dtype_](p_, rows_of(rows_[static_cast<size_t>(i)]));
      if (shares != nullptr) shares[i] = share;
    });
  }

  // The shares of d_sink in the order of the units, whoever ran them.
  tilekiln_status sum_sink() {
    if (call_.d_sink == nullptr) return TILEKILN_OK;
    if (rows_.empty()) return finish_without_work();
    const float* const shares = shares_.as<float>();
    return stage(TILEKILN_BWD_DOT_DO_O, 1, 0, 64, [&](i64, void*) {
      std::vector<double> sums(static_cast<size_t>(p_.nhead_q), 0.0);
      for (size_t i = 0; i < rows_.size(); ++i)
        sums[static_cast<size_t>(rows_[i].head)] += static_cast<double>(shares[i]);
      for (int head = 0; head < p_.nhead_q; ++head)
        call_.d_sink[head] = static_cast<float>(sums[static_cast<size_t>(head)]);
    });
  }

  // A launcher's prepare has zeroed what it could know the size of.
  tilekiln_status zero() {
    if (call_.memory != BwdMemory::prepared || !zeroed_by_stage(shape_)) return TILEKILN_OK;
    char* const start = reinterpret_cast<char*>(dq_acc_);
    const i64 bytes = static_cast<i64>(device_bytes_), units = (bytes + zero_bytes - 1) / zero_bytes;
    return stage(TILEKILN_BWD_DQ_DK_DV, units, static_cast<double>(bytes), 64, [&](i64 i, void*) {
      memset(start + i * zero_bytes, 0, static_cast<size_t>(std::min(zero_bytes, bytes - i * zero_bytes)));
    });
  }

  tilekiln_status dq_dk_dv() {
    const u64 scratch = engine(TILEKILN_BWD_DQ_DK_DV).scratch_bytes;
    const auto run = [&](BwdUnit& unit, const BwdUnit* next, void* memory) {
      unit.next = next;
      engine(TILEKILN_BWD_DQ_DK_DV).chunk[dtype_](p_, unit, memory);
    };
    if (!p_.features.deterministic) {
      const i64 units = static_cast<i64>(units_.size()), step = useful_threads(call_, units, work_);
      const auto unit_at = [&](i64 i) {
        const KeysUnit& unit = units_[static_cast<size_t>(i)];
        return unit_of(unit.sequence, unit.head, unit.head + (own_heads_ ? 1 : group_), unit.key, unit_k_, 0);
      };
      return stage(TILEKILN_BWD_DQ_DK_DV, units, work_, scratch, [&](i64 i, void* memory) {
        BwdUnit unit = unit_at(i);
        if (i + step >= units) return run(unit, nullptr, memory);
        const BwdUnit next = unit_at(i + step);  // when all threads go at the same pace
        run(unit, &next, memory);
      });
    }
    // The workers' walks cost what their chunks do; the longest is claimed first.
    std::vector<std::pair<double, int>> order;
    for (int worker = 0; worker < shape_.workers; ++worker) {
      double cost = 0;
      walk(worker, [&](const BwdSequence& s, int, int c, int) { cost += cost_of(s, c * tile_k_, tile_k_); });
      if (cost > 0) order.push_back({cost, worker});
    }
    std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    return stage(TILEKILN_BWD_DQ_DK_DV, static_cast<i64>(order.size()), work_, scratch, [&](i64 i, void* memory) {
      BwdUnit unit = {};
      bool waiting = false;
      walk(order[static_cast<size_t>(i)].second, [&](const BwdSequence& s, int head, int c, int split) {
        const BwdUnit next = unit_of(s.batch, head, head + 1, c * tile_k_, tile_k_, split);
        if (waiting) run(unit, &next, memory);
        unit = next;
        waiting = true;
      });
      run(unit, nullptr, memory);
    });
  }

  // job(sequence, head, chunk, split) for each chunk of a worker that has a key.
  template <class Job> void walk(int worker, Job&& job) const {
    const auto seen = [&](int b, int head, int c, int split) {
      const BwdSequence& s = sequences_[static_cast<size_t>(b)];
      if (i64(c) * tile_k_ < s.seqlen_k) job(s, head, c, split);
    };
    if (shape_.group_schedule()) {
      const GroupSchedule schedule = schedule_in(layout_, schedule_);
      walk_group(schedule.cu_states[worker], schedule.batch_states, shape_.batch, shape_.nhead_q, seen);
    } else {
      walk_batch(shape_, batch_jobs(shape_), worker, p_.features.mask, seen);
    }
  }

  i64 mark_of(const BwdSequence& s, int head, int split) const {
    return s.marks + (i64(head) * s.nsplits + split) * s.tiles;
  }

  float* acc_of(const BwdSequence& s, int head, int split) const {
    return dq_acc_ + s.acc + (i64(head) * s.nsplits + split) * s.physical_q * p_.hdim_q;
  }

  BwdUnit unit_of(int sequence, int head, int head_end, int key, int keys, int split) const {
    const BwdSequence& s = sequences_[static_cast<size_t>(sequence)];
    BwdUnit unit = {};
    unit.batch = s.batch;
    unit.head = head;
    unit.head_end = head_end;
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
    unit.dq_acc = acc_of(s, head, split);
    unit.dq_acc_head = s.nsplits * s.physical_q * p_.hdim_q;
    unit.dq_tiles_head = s.nsplits * s.tiles;
    const i64 mark = mark_of(s, head, split);
    if (locked_) unit.dq_locks = locks_.as<unsigned char>() + mark;
    if (begun_) unit.dq_begun = begun_.as<unsigned char>() + mark;
    if (own_heads_) {
      const i64 row = s.keys_before * p_.nhead_q + i64(head) * s.seqlen_k;
      unit.dk_acc = dk_acc_.as<float>() + row * p_.hdim_q;
      unit.dv_acc = dv_acc_.as<float>() + row * p_.hdim_v;
    }
    return unit;
  }

  // dk and dv of a group of query heads, added in head order.
  tilekiln_status sum_heads() {
    if (!own_heads_) return TILEKILN_OK;
    std::vector<KeysUnit> parts;
    for (size_t s = 0; s < sequences_.size(); ++s) {
      for (int head = 0; head < p_.nhead_k; ++head) {
        for (int c = 0; c < chunks_of(sequences_[s]); ++c) parts.push_back({static_cast<int>(s), head, c * tile_k_});
      }
    }
    const BwdSequence& last = sequences_.back();
    const double elements =
        static_cast<double>(last.keys_before + last.seqlen_k) * p_.nhead_q * (p_.hdim_q + p_.hdim_v);
    const auto sum = engine(TILEKILN_BWD_DQ_DK_DV).sum_heads[dtype_];
    return stage(TILEKILN_BWD_DQ_DK_DV, static_cast<i64>(parts.size()), 8 * elements, 64, [&](i64 i, void*) {
      const KeysUnit& part = parts[static_cast<size_t>(i)];
      const BwdSequence& s = sequences_[static_cast<size_t>(part.sequence)];
      const i64 key = part.key, rows = std::min<i64>(tile_k_, s.seqlen_k - key);
      const i64 from = s.keys_before * p_.nhead_q + i64(part.head) * group_ * s.seqlen_k + key;
      sum(static_cast<char*>(p_.dk) + element_ * (s.dk + part.head * p_.dk_head + key * p_.dk_row), p_.dk_row,
          dk_acc_.as<float>() + from * p_.hdim_q, i64(s.seqlen_k) * p_.hdim_q, group_, static_cast<int>(rows),
          p_.hdim_q);
      sum(static_cast<char*>(p_.dv) + element_ * (s.dv + part.head * p_.dv_head + key * p_.dv_row), p_.dv_row,
          dv_acc_.as<float>() + from * p_.hdim_v, i64(s.seqlen_k) * p_.hdim_v, group_, static_cast<int>(rows),
          p_.hdim_v);
    });
  }

  tilekiln_status convert_dq() {
    const BwdEngine& e = engine(TILEKILN_BWD_CONVERT_DQ);
    const int nsplits = sequences_.front().nsplits;
    const double work = 8.0 * static_cast<double>(rows_in_all_) * p_.nhead_q * p_.hdim_q * nsplits;
    return stage(TILEKILN_BWD_CONVERT_DQ, static_cast<i64>(rows_.size()), work, 64, [&](i64 i, void*) {
      const RowsUnit& unit = rows_[static_cast<size_t>(i)];
      const BwdSequence& s = sequences_[static_cast<size_t>(unit.sequence)];
      BwdRows rows = rows_of(unit);
      if (s.seqlen_k == 0) return clear_dq(rows);
      rows.nsplits = s.nsplits;
      rows.dq_acc = acc_of(s, unit.head, 0);
      rows.dq_acc_split = s.physical_q * p_.hdim_q;
      if (begun_) rows.dq_begun = begun_.as<unsigned char>() + mark_of(s, unit.head, 0);
      rows.dq_begun_split = s.tiles;
      e.convert_dq[dtype_](p_, rows);
    });
  }

  // A sequence without a key has no dq_acc to read when no sequence has one. 0 is all bits 0 in every dtype.
  void clear_dq(const BwdRows& rows) const {
    char* const dq = static_cast<char*>(p_.dq) + element_ * (rows.dq_offset + rows.head * p_.dq_head);
    for (i64 row = rows.row; row < rows.row_end; ++row) {
      memset(dq + element_ * row * p_.dq_row, 0, static_cast<size_t>(element_ * p_.hdim_q));
    }
  }

  BwdCall& call_;
  BwdProblem& p_;
  BwdSteps& steps_;
  const BwdWorkspaceShape shape_;
  const BwdWorkspaceLayout layout_;
  const int tile_q_, tile_k_, step_k_, group_, dtype_, element_;
  std::vector<BwdSequence> sequences_;
  std::vector<double> cost_;
  std::vector<RowsUnit> rows_;
  std::vector<KeysUnit> units_;
  i64 rows_in_all_ = 0;
  double work_ = 0;
  int unit_k_ = tile_k_;  // keys of a unit that need not be deterministic
  bool own_heads_ = false, locked_ = false;
  CallMemory own_, delta_, lse_, shares_, dk_acc_, dv_acc_, locks_, begun_;
  char* workspace_ = nullptr;
  std::vector<u64> packed_;   // the host segment, where that of the workspace is not the host's to use
  char* schedule_ = nullptr;  // the host segment
  float* dq_acc_ = nullptr;
  u64 device_bytes_ = 0;
};

}  // namespace

tilekiln_status run_bwd(BwdCall& call) {
  if (!call.backend->takes_units) return run_kernels(call);
  if (call.unread) {
    call.workers = shape_of(call).workers;  // those that the size of its workspace was said for
    TILEKILN_TRY(read_sequences(&call));
  }
  return Run(call).run();
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
