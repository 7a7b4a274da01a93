// SPDX-License-Identifier: MIT
// Units of a call over a KV cache: counted, put in order, handed out; for split-KV in two stages.
//
// Units are numbered, never listed: sequence by sequence with the most keys first, within it by heads (those of one key
// head follow each other, so its keys stay in the cache), within them the tiles of rows with the most visible keys
// first, within a tile its splits.

#include <algorithm>

#include "kernels/attention/kv/call.h"
#include "kernels/attention/splits.h"
#include "kernels/attention/visible.h"
#include "kernels/backends/cpu/parallel.h"
#include "kernels/generated/fmha_fwd_splitkv.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::fmha {
namespace {

// A key that few rows share costs what it takes to load, about as much as this many rows.
constexpr i64 rows_per_load = 8;
// Rows of a head that one unit of the second stage puts together.
constexpr i64 combine_rows = 64;
// Keys and values of a call that a cache of the machine may still hold from the last call. From there a unit of one key
// head is faster, from memory one of all key heads; the latter sooner where several query heads read each, in 16 bits or fewer.
constexpr i64 cached_bytes = i64(24) << 20, cached_bytes_of_groups = i64(8) << 20;

constexpr i64 key_bytes(KvDtype dtype) {
  return dtype == KvDtype::fp32 ? 4 : dtype == KvDtype::fp16 || dtype == KvDtype::bf16 ? 2 : 1;
}

double work_of(const KvCall& call) {
  const KvProblem& problem = call.problem;
  const i64 group = problem.nhead_q / problem.nhead_k;
  double work = 0;
  for (const KvSequence& sequence : call.kv_sequences) {
    if (sequence.seqlen_q == 0) continue;
    const i64 rows = std::max(sequence.seqlen_q * group, rows_per_load);
    work += mean_visible_keys(problem, sequence.seqlen_q, sequence.seqlen_k) * static_cast<double>(rows);
  }
  return work * problem.nhead_k * (problem.hdim_q + problem.hdim_v);
}

// Tells whether a unit of one query may have every head, and memory makes it the faster: key heads lie side by side there.
bool all_heads_suit(const KvCall& call) {
  const KvProblem& problem = call.problem;
  if (!call.shares_heads || problem.nhead_k == 1 || call.seqlen_q != 1 ||
      problem.nhead_q > static_cast<const KvEngine*>(call.choice.engine)->all_heads)
    return false;
  if (problem.pages.page_size != 0 && problem.pages.layout == KvLayout::vectorized) return false;
  if (problem.k_head != problem.hdim_q || problem.v_head != problem.hdim_v) return false;
  if (problem.k_page_scale != nullptr) return false;
  i64 keys = 0;
  for (const KvSequence& sequence : call.kv_sequences) keys += sequence.seqlen_k;
  const i64 bytes = key_bytes(problem.dtype);
  const bool groups = problem.nhead_q > problem.nhead_k && bytes < 4;
  return keys * problem.nhead_k * (problem.hdim_q + problem.hdim_v) * bytes >=
         (groups ? cached_bytes_of_groups : cached_bytes);
}

// A float of the device, when all before it in the stream has run.
tilekiln_status read_float(const Run& run, const float* from, float* to) {
  return run.backend->copy(run.device, run.native, to, from, sizeof(float), Direction::to_host);
}

class Running {
 public:
  explicit Running(KvCall& call)
      : call_(call),
        problem_(call.problem),
        engine_(*static_cast<const KvEngine*>(call.choice.engine)),
        splits_(num_splits(call)) {
    const i64 tile_q = call.choice.how->fields[fmha_fwd_splitkv::fields::tile_q],
              group = problem_.nhead_q / problem_.nhead_k;
    // Heads of one key head go together, in chunks of about equal size.
    const i64 chunks = call.shares_heads ? (group + tile_q - 1) / tile_q : group;
    heads_ = (group + chunks - 1) / chunks;
    chunks_ = (group + heads_ - 1) / heads_;
    rows_ = std::max<i64>(1, tile_q / heads_);
    own_heads_ = problem_.nhead_k;
    if (takes_all_heads()) heads_ = problem_.nhead_q, chunks_ = own_heads_ = 1, rows_ = 1;
    number();
  }

  tilekiln_status run() {
    const int dtype = static_cast<int>(problem_.dtype);
    problem_.out_scale = 1;
    if (call_.out_scale != nullptr) TILEKILN_TRY(read_float(call_, call_.out_scale, &problem_.out_scale));
    CallMemory pages;
    TILEKILN_TRY(place_table(call_, call_.table, &pages, &problem_.pages.table));
    if (splits_ == 1) {
      unit_ = engine_.tile[dtype];
      if (unit_ == nullptr) return fail_engine("whole tiles");
      return main_stage();
    }
    unit_ = engine_.split[dtype];
    if (unit_ == nullptr) return fail_engine("splits");
    const KvEngine& second = *static_cast<const KvEngine*>(call_.combine.engine);
    if (second.combine[dtype] == nullptr) return fail_engine("a combine stage");
    CombineProblem combine;
    CallMemory memory;
    TILEKILN_TRY(take_memory(&memory, &combine));
    TILEKILN_TRY(main_stage());
    return combine_stage(second.combine[dtype], combine);
  }

 private:
  static tilekiln_status fail_engine(const char* what) {
    return fail(TILEKILN_INTERNAL, "the engine of the chosen instance does not do %s in this dtype", what);
  }

  // Tells whether units of every head suit the call, and keep every thread busy.
  bool takes_all_heads() const {
    if (!all_heads_suit(call_)) return false;
    i64 units = 0;
    for (const KvSequence& sequence : call_.kv_sequences) units += splits_ * (sequence.seqlen_q > 0);
    const i64 threads = useful_threads(call_, call_.threads, work_of(call_));
    return units % threads == 0 || units >= 4 * threads;
  }

  i64 tiles_of(i64 seqlen_q) const { return (seqlen_q + rows_ - 1) / rows_; }

  void number() {
    auto& sequences = call_.kv_sequences;
    size_t kept = 0;
    for (const KvSequence& sequence : sequences) {
      if (sequence.seqlen_q > 0) sequences[kept++] = sequence;
    }
    sequences.shrink(kept);
    std::sort(sequences.begin(), sequences.end(), [](const KvSequence& a, const KvSequence& b) {
      return a.seqlen_k != b.seqlen_k ? a.seqlen_k > b.seqlen_k : a.batch < b.batch;
    });
    for (KvSequence& sequence : sequences) {
      sequence.first_row = total_rows_;
      sequence.first_unit = units_;
      sequence.first_combine = combine_units_;
      total_rows_ += sequence.seqlen_q;
      units_ += own_heads_ * chunks_ * tiles_of(sequence.seqlen_q) * splits_;
      combine_units_ += problem_.nhead_q * ((sequence.seqlen_q + combine_rows - 1) / combine_rows);
    }
  }

  // Room for the partial results, o_acc (nhead_q, splits, rows, hdim_v) and lse_acc (nhead_q, splits, rows): the first
  // stage writes there, and the second has what the first would have written to.
  tilekiln_status take_memory(CallMemory* memory, CombineProblem* combine) {
    const unsigned __int128 floats = static_cast<unsigned __int128>(problem_.nhead_q) * static_cast<u64>(splits_) *
                                     static_cast<u64>(total_rows_) * static_cast<u64>(problem_.hdim_v + 1);
    const size_t bytes = floats > (SIZE_MAX >> 4) ? SIZE_MAX >> 1 : (static_cast<size_t>(floats) * 4 + 63) / 64 * 64;
    if (memory->get(call_, bytes == 0 ? 64 : bytes) != TILEKILN_OK) {
      return fail(TILEKILN_OUT_OF_MEMORY,
                  "no memory for %zu bytes of partial results; out is as it was. num_splits was %d", bytes, splits_);
    }
    combine->dtype = problem_.dtype;
    combine->nsplits = splits_;
    combine->hdim_v = problem_.hdim_v;
    combine->o_acc_row = problem_.hdim_v;
    combine->o_acc_split = total_rows_ * problem_.hdim_v;
    combine->o_acc_head = splits_ * combine->o_acc_split;
    combine->lse_acc_split = total_rows_;
    combine->lse_acc_head = splits_ * total_rows_;
    combine->o_acc = memory->as<float>();
    combine->lse_acc = memory->as<float>() + problem_.nhead_q * combine->o_acc_head;
    combine->out = problem_.out;
    combine->out_head = problem_.out_head;
    combine->out_row = problem_.out_row;
    combine->lse = problem_.lse;
    combine->lse_head = problem_.lse_head;
    combine->out_scale = problem_.out_scale;

    problem_.out = memory->as<float>();
    problem_.out_head = combine->o_acc_head;
    problem_.out_row = combine->o_acc_row;
    problem_.lse = memory->as<float>() + problem_.nhead_q * combine->o_acc_head;
    problem_.lse_head = combine->lse_acc_head;
    problem_.out_scale = 1;
    problem_.features.lse = true;
    return TILEKILN_OK;
  }

  tilekiln_status main_stage() {
    return launch_stage(
        call_, call_.choice, problem_, units_, work_of(call_), engine_.scratch_bytes,
        [this](i64 unit, void* scratch) { run_unit(unit, scratch); }, !call_.shares_heads);
  }

  const KvSequence& sequence_of(i64 number, i64 KvSequence::* first) const {
    return std::upper_bound(call_.kv_sequences.begin(), call_.kv_sequences.end(), number,
                            [&](i64 value, const KvSequence& sequence) { return value < sequence.*first; })[-1];
  }

  void run_unit(i64 number, void* scratch) const {
    const KvSequence& sequence = sequence_of(number, &KvSequence::first_unit);
    number -= sequence.first_unit;
    const int split = static_cast<int>(number % splits_);
    number /= splits_;
    const i64 tiles = tiles_of(sequence.seqlen_q);
    i64 tile = number % tiles;
    const i64 chunk = number / tiles % chunks_, head_k = number / tiles / chunks_;
    if (last_rows_see_more(problem_, sequence.seqlen_q, sequence.seqlen_k)) tile = tiles - 1 - tile;

    const i64 group = problem_.nhead_q / own_heads_;
    const KvSteps& steps = call_.steps;
    KvUnit unit;
    unit.batch = sequence.batch;
    unit.head = static_cast<int>(head_k * group + chunk * heads_);
    unit.heads = static_cast<int>(std::min(heads_, group - chunk * heads_));
    unit.row = static_cast<int>(tile * rows_);
    unit.rows = static_cast<int>(std::min<i64>(rows_, sequence.seqlen_q - unit.row));
    unit.seqlen_q = sequence.seqlen_q;
    unit.seqlen_k = sequence.seqlen_k;
    unit.q_offset = sequence.place_q * steps.q;
    unit.k_offset = sequence.place_k * steps.k;
    unit.v_offset = sequence.place_k * steps.v;
    unit.randval_offset = sequence.place_q * steps.randval;
    unit.bias_offset = sequence.place_q * steps.bias;
    unit.alibi_offset = sequence.batch * steps.alibi;
    unit.q_descale_offset = unit.k_descale_offset = unit.v_descale_offset = 0;
    unit.pages_offset = sequence.pages_offset;
    unit.first_key = sequence.first_key;
    unit.first_split = split == 0;
    if (splits_ == 1) {
      unit.out_offset = sequence.place_q * steps.out;
      unit.lse_offset = sequence.place_q * steps.lse;
      unit.key_begin = 0;
      unit.key_end = sequence.seqlen_k;
    } else {
      unit.out_offset = (split * total_rows_ + sequence.first_row) * problem_.hdim_v;
      unit.lse_offset = split * total_rows_ + sequence.first_row;
      const KeyRange keys = keys_of_split(sequence.seqlen_k, splits_, split);
      unit.key_begin = keys.begin;
      unit.key_end = keys.end;
    }
    unit_(problem_, unit, scratch);
  }

  tilekiln_status combine_stage(void (*run)(const CombineProblem&, const CombineUnit&), const CombineProblem& combine) {
    const double work = static_cast<double>(total_rows_) * problem_.nhead_q * splits_ * problem_.hdim_v;
    return launch_stage(call_, call_.combine, combine, combine_units_, work, 1, [&](i64 number, void*) {
      const KvSequence& sequence = sequence_of(number, &KvSequence::first_combine);
      number -= sequence.first_combine;
      const i64 tiles = (sequence.seqlen_q + combine_rows - 1) / combine_rows;
      CombineUnit unit;
      unit.head = static_cast<int>(number / tiles);
      unit.row = static_cast<int>(number % tiles * combine_rows);
      unit.row_end = static_cast<int>(std::min<i64>(unit.row + combine_rows, sequence.seqlen_q));
      unit.o_acc_offset = sequence.first_row * problem_.hdim_v;
      unit.lse_acc_offset = sequence.first_row;
      unit.out_offset = sequence.place_q * call_.steps.out;
      unit.lse_offset = sequence.place_q * call_.steps.lse;
      run(combine, unit);
    });
  }

  KvCall& call_;
  KvProblem problem_;  // a copy: the first stage writes elsewhere than the call
  const KvEngine& engine_;
  const int splits_;
  i64 own_heads_;              // key heads that have units of their own
  i64 heads_, chunks_, rows_;  // query heads of a unit, units to a key head, rows of a unit
  i64 units_ = 0, combine_units_ = 0, total_rows_ = 0;
  void (*unit_)(const KvProblem&, const KvUnit&, void*) = nullptr;
};

tilekiln_status check_and_run(KvCall& call) {
  // Earlier work of the stream may have written the scales, so they are looked at here.
  if (call.stream != nullptr) TILEKILN_TRY(check_kv_scales(call));
  return run_kv(call);
}

}  // namespace

tilekiln_status place_table(const Run& run, const SmallArray<int, 64>& table, CallMemory* memory, const int** place) {
  if (table.size() == 0) return TILEKILN_OK;
  *place = table.begin();
  if (run.backend->host_memory) return TILEKILN_OK;
  const size_t bytes = sizeof(int) * table.size();
  TILEKILN_TRY(memory->get(run, bytes));
  *place = memory->as<int>();
  return run.backend->copy(run.device, run.native, memory->as<int>(), table.begin(), bytes, Direction::to_device);
}

tilekiln_status check_kv_scales(const KvCall& call) {
  if (!call.backend->host_memory) return TILEKILN_OK;  // the kernels' to read
  const float* const values[] = {call.problem.q_descale, call.problem.k_descale, call.problem.v_descale,
                                 call.out_scale};
  const char* const names[] = {"q_descale", "k_descale", "v_descale", "out_scale"};
  for (int i = 0; i < 4; ++i) {
    if (values[i] != nullptr && !__builtin_isfinite(*values[i]))
      return fail_argument(names[i], "was %g, must be finite", static_cast<double>(*values[i]));
  }
  return TILEKILN_OK;
}

int num_splits(const KvCall& call) {
  if (call.num_splits > 0) return call.num_splits;
  if (!call.backend->takes_units) return splits_of_kernels(call);
  const KvProblem& problem = call.problem;
  i64 batch = 0;
  for (const KvSequence& sequence : call.kv_sequences) batch += sequence.seqlen_q > 0;
  const bool shared = !problem.features.mask && problem.features.bias == Bias::none;
  // A block is a unit: where one has every head there is one for each sequence.
  const i64 blocks =
      all_heads_suit(call) ? batch : blocks_of(batch, problem.nhead_q, problem.nhead_k, call.seqlen_q, shared);
  // Workers are the threads that the work is worth: short caches are not cut for threads that would come too late.
  return best_splits(blocks, useful_threads(call, call.threads, work_of(call)));
}

tilekiln_status run_kv(KvCall& call) {
  if (!call.backend->takes_units) return run_kernels(call);
  if (call.unread) TILEKILN_TRY(read_keys(&call));
  return Running(call).run();
}

tilekiln_status launch(KvCall& call) { return run_in_stream<KvCall, check_and_run>(call); }

}  // namespace tilekiln::fmha
