// SPDX-License-Identifier: MIT
// An append: tokens of every sequence written and rotated, a few to a unit; then, if asked, attention over the grown
// cache.
#include <algorithm>

#include "kernels/attention/kv/call.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::fmha {
namespace {

// Tokens of a unit, every head of them.
constexpr int tokens = 16;

tilekiln_status run_append(AppendCall& call) {
  AppendProblem& problem = call.problem;
  if (!call.backend->takes_units) return run_kernels(call);
  const auto append = static_cast<const KvEngine*>(call.choice.engine)->append[static_cast<int>(problem.dtype)];
  if (append == nullptr)
    return fail(TILEKILN_INTERNAL, "the engine of the chosen instance does not append in this dtype");
  if (call.attends) TILEKILN_TRY(check_kv_scales(call.attention));
  if (call.unread) {
    TILEKILN_TRY(read_places(&call));
    if (call.attends) TILEKILN_TRY(read_keys(&call.attention));
  }
  CallMemory pages;
  TILEKILN_TRY(place_table(call, call.table, &pages, &problem.pages.table));
  const int queries = problem.q != nullptr ? call.seqlen_q : 0;
  const i64 each = (std::max(queries, call.seqlen_new) + tokens - 1) / tokens;
  const double work = static_cast<double>(call.batch) *
                      (static_cast<double>(queries) * problem.nhead_q * problem.hdim_q +
                       static_cast<double>(call.seqlen_new) * problem.nhead_k * (problem.hdim_q + problem.hdim_v));
  TILEKILN_TRY(launch_stage(call, call.choice, problem, each * call.batch, work, 1, [&](i64 number, void*) {
    const AppendSequence& sequence = call.kv_sequences[static_cast<size_t>(number / each)];
    const int first = static_cast<int>(number % each) * tokens;
    AppendUnit unit;
    unit.seqlen_k = sequence.seqlen_k;
    unit.q_row = std::min(first, queries);
    unit.q_row_end = std::min(first + tokens, queries);
    unit.new_row = std::min(first, call.seqlen_new);
    unit.new_row_end = std::min(first + tokens, call.seqlen_new);
    unit.q_offset = sequence.batch * call.steps.q;
    unit.knew_offset = sequence.batch * call.steps.knew;
    unit.vnew_offset = sequence.batch * call.steps.vnew;
    unit.k_offset = problem.pages.table != nullptr ? 0 : sequence.place_k * call.steps.k;
    unit.v_offset = problem.pages.table != nullptr ? 0 : sequence.place_k * call.steps.v;
    unit.pages_offset = sequence.pages_offset;
    unit.first_key = 0;  // new keys land at seqlen_k, counted from the start of the cache
    append(problem, unit);
  }));
  return call.attends ? run_kv(call.attention) : TILEKILN_OK;
}

}  // namespace

tilekiln_status launch(AppendCall& call) { return run_in_stream<AppendCall, run_append>(call); }

}  // namespace tilekiln::fmha
