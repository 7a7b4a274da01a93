// SPDX-License-Identifier: MIT
// Units of a call: counted, put in order, handed out.
//
// A unit is one tile of queries of one head of one sequence. Units are never listed: they are numbered, sequence by
// sequence with the longest first, within it head by head (heads of one group follow each other, so their keys stay in
// the cache), within it the tiles with the longest range of visible keys first. The last units handed out are so the
// shortest ones, and no thread is left waiting for a long one.
#include <algorithm>

#include "kernels/attention/fmha_fwd/call.h"
#include "kernels/attention/visible.h"
#include "kernels/generated/fmha_fwd.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::fmha {
namespace {

class Run {
 public:
  explicit Run(FwdCall& call)
      : call_(call),
        problem_(call.problem),
        engine_(*static_cast<const FwdEngine*>(call.choice.engine)),
        tile_(engine_.tile[static_cast<int>(call.problem.features.dtype)]),
        tile_q_(call.choice.how->fields[fmha_fwd::fields::tile_q]) {
    if (call.uniform) {
      tiles_ = call.seqlen_q > call.min_seqlen_q ? tiles_of(call.seqlen_q) : 0;
      last_first_ = descending(call.seqlen_q, call.seqlen_k);
      units_ = tiles_ * problem_.nhead_q * call.batch;
      work_ = work_of(call.seqlen_q, call.seqlen_k) * call.batch;
    } else {
      number_sequences();
    }
  }

  tilekiln_status run() {
    return launch_stage(
        call_, call_.choice, problem_, units_, work_, engine_.scratch_bytes,
        [this](i64 unit, void* scratch) { run_unit(unit, scratch); }, true);
  }

 private:
  i64 tiles_of(i64 seqlen_q) const { return (seqlen_q + tile_q_ - 1) / tile_q_; }

  bool descending(i64 seqlen_q, i64 seqlen_k) const { return last_rows_see_more(problem_, seqlen_q, seqlen_k); }

  double work_of(i64 seqlen_q, i64 seqlen_k) const {
    return mean_visible_keys(problem_, seqlen_q, seqlen_k) * static_cast<double>(seqlen_q) * problem_.nhead_q *
           (problem_.hdim_q + problem_.hdim_v);
  }

  void number_sequences() {
    auto& sequences = call_.sequences;
    // Drops those without work: no query, or not more than min_seqlen_q.
    size_t kept = 0;
    for (const Sequence& sequence : sequences) {
      if (sequence.seqlen_q > call_.min_seqlen_q) sequences[kept++] = sequence;
    }
    sequences.shrink(kept);
    std::sort(sequences.begin(), sequences.end(), [](const Sequence& a, const Sequence& b) {
      return a.seqlen_k != b.seqlen_k ? a.seqlen_k > b.seqlen_k : a.batch < b.batch;
    });
    for (Sequence& sequence : sequences) {
      sequence.first_unit = units_;
      units_ += tiles_of(sequence.seqlen_q) * problem_.nhead_q;
      work_ += work_of(sequence.seqlen_q, sequence.seqlen_k);
    }
  }

  void run_unit(i64 number, void* scratch) const {
    FwdUnit unit;
    i64 tiles = tiles_, place_q = 0, place_k = 0, place_scale_q = 0, place_scale_k = 0;
    bool last_first = last_first_;
    if (call_.uniform) {
      const i64 per_batch = tiles * problem_.nhead_q;
      unit.batch = static_cast<int>(number / per_batch);
      number %= per_batch;
      unit.seqlen_q = call_.seqlen_q;
      unit.seqlen_k = call_.seqlen_k;
      place_q = place_k = place_scale_q = place_scale_k = unit.batch;
    } else {
      const Sequence* const after =
          std::upper_bound(call_.sequences.begin(), call_.sequences.end(), number,
                           [](i64 value, const Sequence& sequence) { return value < sequence.first_unit; });
      const Sequence& sequence = after[-1];
      number -= sequence.first_unit;
      unit.batch = sequence.batch;
      unit.seqlen_q = sequence.seqlen_q;
      unit.seqlen_k = sequence.seqlen_k;
      place_q = sequence.place_q;
      place_k = sequence.place_k;
      place_scale_q = sequence.place_scale_q;
      place_scale_k = sequence.place_scale_k;
      tiles = tiles_of(unit.seqlen_q);
      last_first = descending(unit.seqlen_q, unit.seqlen_k);
    }
    unit.head = static_cast<int>(number / tiles);
    const i64 tile = number % tiles;
    const auto row_of = [&](i64 i) { return static_cast<int>((last_first ? tiles - 1 - i : i) * tile_q_); };
    unit.row = row_of(tile);
    const bool head_ends = tile + 1 == tiles;
    if (!head_ends || unit.head + 1 < problem_.nhead_q) {
      unit.next_head = unit.head + (head_ends ? 1 : 0);
      unit.next_row = row_of(head_ends ? 0 : tile + 1);
    }
    const FwdSteps& steps = call_.steps;
    unit.q_offset = place_q * steps.q;
    unit.k_offset = place_k * steps.k;
    unit.v_offset = place_k * steps.v;
    unit.out_offset = place_q * steps.out;
    unit.lse_offset = place_q * steps.lse;
    unit.randval_offset = place_q * steps.randval;
    unit.bias_offset = place_q * steps.bias;
    unit.alibi_offset = unit.batch * steps.alibi;
    unit.q_descale_offset = place_scale_q * steps.q_descale;
    unit.k_descale_offset = place_scale_k * steps.k_descale;
    unit.v_descale_offset = place_scale_k * steps.v_descale;
    tile_(problem_, unit, scratch);
  }

  FwdCall& call_;
  const FwdProblem& problem_;
  const FwdEngine& engine_;
  void (*tile_)(const FwdProblem&, const FwdUnit&, void*);
  i64 tile_q_, tiles_ = 0, units_ = 0;
  bool last_first_ = false;
  double work_ = 0;
};

tilekiln_status run_fwd(FwdCall& call) {
  // Earlier work of the stream may have written the scales, so they are looked at here.
  if (call.stream != nullptr && call.problem.features.qscale == Qscale::pertensor && call.backend->host_memory)
    TILEKILN_TRY(check_fwd_descales(call.problem));
  if (!call.backend->takes_units) {
    FwdKernelProblem problem = {call.problem,  call.steps,       {}, call.batch, call.seqlen_q,
                                call.seqlen_k, call.min_seqlen_q};
    CallMemory memory;
    TILEKILN_TRY(place_lengths(call, call.problem.features.group, &memory, &problem.lengths));
    return launch_kernel(call, call.choice, problem);
  }
  if (call.unread) TILEKILN_TRY(read_sequences(&call));
  return Run(call).run();
}

}  // namespace

tilekiln_status launch(FwdCall& call) { return run_in_stream<FwdCall, run_fwd>(call); }

}  // namespace tilekiln::fmha
