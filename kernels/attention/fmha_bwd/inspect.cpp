// SPDX-License-Identifier: MIT
// The plan of a backward workspace for people and tests: its layout, its schedule, and how even the work is.
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "kernels/attention/fmha_bwd/sequences.h"

namespace tilekiln::fmha {
namespace {

using ll = long long;

// The plan counts every chunk of keys of every head, so there is an end to what it takes.
tilekiln_status check_units(const tilekiln_bwd_workspace_problem& p) {
  constexpr i64 most = i64(1) << 24;
  i64 a_head = 0;
  for (int b = 0; b < p.batch; ++b) {
    const i64 keys = p.group != 0 ? i64(p.seqstart_k[b + 1]) - p.seqstart_k[b] : p.seqlen_k;
    a_head += 1 + (keys + p.kN0 - 1) / p.kN0;
  }
  if (a_head <= most / p.nhead_q) return TILEKILN_OK;
  return fail_argument(
      "nhead_q",
      "was %d, must be at most %lld with these sequences, which have %lld chunks of kN0 keys a head: the "
      "plan counts each chunk of each head; heads are alike, so plan fewer",
      p.nhead_q, static_cast<ll>(most / std::max<i64>(1, a_head)), static_cast<ll>(a_head));
}

tilekiln_status check_problem(const tilekiln_bwd_workspace_problem& p) {
  if (p.size != sizeof(p)) {
    return fail_argument("problem", "size was %zu, must be %zu, sizeof(tilekiln_bwd_workspace_problem) of ABI %d",
                         p.size, sizeof(p), TILEKILN_ABI_VERSION);
  }
  const struct {
    const char* name;
    i64 value, least, most;
  } fields[] = {
      {"mode", p.group, 0, 1},
      {"deterministic", p.deterministic, 0, 1},
      {"batch", p.batch, 0, INT32_MAX - 1},
      {"nhead_q", p.nhead_q, 1, INT32_MAX},
      {"hdim_q", p.hdim_q, 1, 1 << 16},
      {"kM0", p.kM0, 1, 1 << 16},
      {"kN0", p.kN0, 1, 1 << 16},
      {"workers", p.workers, 0, max_workers},
      {"seqlen_q", p.seqlen_q, 0, max_seqlen},
      {"seqlen_k", p.seqlen_k, 0, max_seqlen},
      {"causal", p.causal, 0, 1},
      {"threads", p.threads, 0, 1024},
  };
  for (const auto& field : fields) TILEKILN_TRY(check_range(field.name, field.value, field.least, field.most));
  if (p.group == 0) return check_units(p);
  for (const auto& [name, starts] : {std::pair("seqstart_q", p.seqstart_q), {"seqstart_k", p.seqstart_k}}) {
    if (starts == nullptr) return fail_argument(name, "was null, must be given in group mode");
    if (starts[0] < 0) return fail_argument(name, "entry 0 was %d, must be 0 or more", starts[0]);
    for (int b = 0; b < p.batch; ++b) {
      if (starts[b + 1] >= starts[b]) continue;
      return fail_argument(name, "must not decrease, but entry %d is %d after %d", b + 1, starts[b + 1], starts[b]);
    }
  }
  return check_units(p);
}

// The most over the mean. Nothing to do is even.
double balance(const std::vector<double>& work) {
  double most = 0, sum = 0;
  for (const double value : work) {
    most = std::max(most, value);
    sum += value;
  }
  return sum > 0 ? most * static_cast<double>(work.size()) / sum : 1;
}

class Inspection {
 public:
  Inspection(const tilekiln_bwd_workspace_problem& p) : p_(p) {
    shape_.group = p.group != 0;
    shape_.deterministic = p.deterministic != 0;
    shape_.batch = p.batch;
    shape_.nhead_q = p.nhead_q;
    shape_.hdim_q = p.hdim_q;
    shape_.tile_q = p.kM0;
    shape_.tile_k = p.kN0;
    total_q_ = i64(p.batch) * p.seqlen_q;
    longest_k_ = p.seqlen_k;
    if (shape_.group) {
      total_q_ = p.seqstart_q[p.batch];
      longest_k_ = 0;
      for (int b = 0; b < p.batch; ++b) longest_k_ = std::max<i64>(longest_k_, seqlen_k(b));
    } else {
      shape_.seqlen_q = p.seqlen_q;
      shape_.seqlen_k = p.seqlen_k;
    }
    shape_.workers = p.workers != 0 ? p.workers : default_workers(shape_, total_q_, longest_k_);
    window_.features.mask = p.causal != 0;
    window_.window_left = -1;
  }

  const BwdWorkspaceShape& shape() const { return shape_; }

  void fill(tilekiln_bwd_workspace_layout* out, void* host) {
    const BwdWorkspaceLayout layout = layout_of(shape_);
    out->device_bytes = pack(shape_, p_.seqstart_q, p_.seqstart_k, host);
    out->host_bytes = layout.host;
    out->upper_bound_bytes = dq_acc_upper_bound(shape_, total_q_, longest_k_);
    out->nsplits_offset = layout.nsplits;
    out->dq_acc_offsets_offset = layout.offsets;
    out->cu_state_offset = layout.cu_state;
    out->batch_state_offset = layout.batch_state;
    out->dq_acc_offset = layout.host;
    out->nsplits_count = layout.nsplits_count;
    out->workers = shape_.workers;
    out->zero_dq_acc = zeroed_by_prepare(shape_);
    out->prezero = zeroed_by_stage(shape_);
    if (shape_.batch_schedule()) {
      const BatchJobs jobs = batch_jobs(shape_);
      out->jobs_per_head = jobs.per_head;
      out->jobs_per_worker = jobs.per_worker;
    }
    walk(schedule_in(layout, host));
    if (shape_.group_schedule()) {
      const BatchState* const states = schedule_in(layout, host).batch_states;
      for (int b = 0; b < shape_.batch; ++b) out->total_w += i64(shape_.nhead_q) * states[b].nc * states[b].sq;
      out->target_w = (out->total_w + shape_.workers - 1) / shape_.workers;
    }
    out->worker_balance = shape_.deterministic ? balance(work_) : 1;
    out->plain_balance = plain();
    const int threads = std::max(1, p_.threads);
    const auto free_units = [&] {
      return units(keys_per_unit(shape_.tile_k, threads, [&](int keys) { return units(keys); }));
    };
    out->thread_balance = balance(claimed(shape_.deterministic ? work_ : free_units(), threads));
  }

  // Work by logical worker.
  const std::vector<double>& work() const { return work_; }

 private:
  i64 seqlen_q(int b) const { return shape_.group ? p_.seqstart_q[b + 1] - p_.seqstart_q[b] : p_.seqlen_q; }
  i64 seqlen_k(int b) const { return shape_.group ? p_.seqstart_k[b + 1] - p_.seqstart_k[b] : p_.seqlen_k; }

  // Pairs of keys [key, key + keys) with every query.
  double pairs(int b, i64 key, i64 keys) {
    // Sequences repeat unit after unit for every head: those of the last one are kept.
    if (b != known_ || keys != known_keys_) {
      known_ = b;
      known_keys_ = keys;
      pairs_.clear();
      for (i64 at = 0; at < seqlen_k(b); at += keys) {
        const i64 end = std::min<i64>(at + keys, seqlen_k(b));
        pairs_.push_back(static_cast<double>(visible_pairs(window_, seqlen_q(b), seqlen_k(b), at, end)));
      }
    }
    return pairs_[static_cast<size_t>(key / keys)];
  }

  // Every (batch, head, chunk) in plain order, or with other keys than a chunk's.
  std::vector<double> units(i64 keys) {
    std::vector<double> all;
    for (int b = 0; b < shape_.batch; ++b) {
      for (int head = 0; head < shape_.nhead_q; ++head) {
        for (i64 key = 0; key < seqlen_k(b); key += keys) all.push_back(pairs(b, key, keys));
      }
    }
    return all;
  }

  void walk(const GroupSchedule& schedule) {
    if (!shape_.deterministic) return;
    work_.assign(static_cast<size_t>(shape_.workers), 0.0);
    for (int block = 0; block < shape_.workers; ++block) {
      const int worker = shape_.group ? xcd_map(block, shape_.workers) : block;
      const auto add = [&](int b, int, int chunk, int) {
        work_[static_cast<size_t>(worker)] += pairs(b, i64(chunk) * shape_.tile_k, shape_.tile_k);
      };
      if (shape_.group) {
        walk_group(schedule.cu_states[block], schedule.batch_states, shape_.batch, shape_.nhead_q, add);
      } else {
        walk_batch(shape_, batch_jobs(shape_), block, p_.causal != 0, add);
      }
    }
  }

  // The plain order cut into runs of equal count, one per thread.
  double plain() {
    const std::vector<double> all = units(shape_.tile_k);
    const size_t parts = static_cast<size_t>(std::max(1, p_.threads));
    std::vector<double> work(parts, 0.0);
    const size_t run = (all.size() + parts - 1) / parts;
    for (size_t i = 0; i < all.size(); ++i) work[i / run] += all[i];
    return balance(work);
  }

  const tilekiln_bwd_workspace_problem& p_;
  BwdWorkspaceShape shape_;
  BwdProblem window_ = {};  // of it, the mask only
  i64 total_q_ = 0, longest_k_ = 0;
  std::vector<double> work_, pairs_;
  int known_ = -1;
  i64 known_keys_ = 0;
};

}  // namespace
}  // namespace tilekiln::fmha

using namespace tilekiln;

tilekiln_status tilekiln_bwd_workspace_plan(const tilekiln_bwd_workspace_problem* problem,
                                            tilekiln_bwd_workspace_layout* layout, void* host, size_t capacity,
                                            int32_t* xcd_map, int64_t* total_work) {
  if (problem == nullptr) return fail_argument("problem", "was null, must point to a tilekiln_bwd_workspace_problem");
  if (layout == nullptr) return fail_argument("layout", "was null, must point to a tilekiln_bwd_workspace_layout");
  if (layout->size != sizeof(*layout)) {
    return fail_argument("layout", "size was %zu, must be %zu, sizeof(tilekiln_bwd_workspace_layout) of ABI %d",
                         layout->size, sizeof(*layout), TILEKILN_ABI_VERSION);
  }
  try {
    TILEKILN_TRY(fmha::check_problem(*problem));
    fmha::Inspection inspection(*problem);
    const uint64_t bytes = fmha::layout_of(inspection.shape()).host;
    if (host != nullptr && capacity < bytes) {
      return fail_argument("capacity", "was %zu, must be %llu or more", capacity,
                           static_cast<unsigned long long>(bytes));
    }
    tilekiln_bwd_workspace_layout answer = {};
    answer.size = sizeof(answer);
    std::vector<fmha::CuState> packed(bytes / sizeof(fmha::CuState));
    inspection.fill(&answer, packed.data());
    if (host != nullptr) memcpy(host, packed.data(), bytes);
    const int workers = inspection.shape().workers;
    for (int block = 0; xcd_map != nullptr && block < workers; ++block) {
      xcd_map[block] = inspection.shape().group_schedule() ? fmha::xcd_map(block, workers) : block;
    }
    for (int worker = 0; total_work != nullptr && worker < workers; ++worker) {
      const auto& work = inspection.work();
      total_work[worker] = work.empty() ? 0 : static_cast<int64_t>(work[static_cast<size_t>(worker)]);
    }
    *layout = answer;
    return TILEKILN_OK;
  } catch (...) {
    return fail_exception();
  }
}
