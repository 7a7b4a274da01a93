// SPDX-License-Identifier: MIT
// Rows of the stages from a checked call of fmha_bwd: what the pipelines have in common. Included once, by the file of
// a pipeline, which is compiled with -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#pragma once
#include <string.h>

#include <initializer_list>

#include "kernels/attention/bwd_engine.h"
#include "kernels/attention/cuda/operands.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/params.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/plan.h"
#include "kernels/backends/cuda/held.h"

#define TILEKILN_JOIN(a, b, c, d) a##b##c##d
#define TILEKILN_ENGINE(target, pipeline) TILEKILN_JOIN(tilekiln_, target, _fmha_bwd_dq_dk_dv_, pipeline)

namespace tilekiln::cuda::fmha_bwd {
namespace {

using fmha::BwdKernelProblem;
using fmha::BwdProblem;
using fmha::Dtype;
using fmha::u64;

const Build& build_of(const Kernel& kernel) { return *static_cast<const Build*>(kernel.build); }

// The smallest kernel of the dtype that holds the head dims of the main stage's instance; null: the library has none.
const Kernel* find_kernel(const BwdKernelProblem& of) {
  const bool fp16 = of.problem.features.dtype == Dtype::fp16;
  const Kernel* best = nullptr;
  const auto columns = [](const Build& build) { return build.hdim + build.hdim_v; };
  for (const Kernel* kernel : held) {
    if (kernel == nullptr) continue;
    const Build& build = build_of(*kernel);
    if ((build.fp16 != 0) != fp16 || build.hdim < of.hdim_q || build.hdim_v < of.hdim_v) continue;
    if (best == nullptr || columns(build) < columns(build_of(*best))) best = kernel;
  }
  return best;
}

// The arrays that a tile is copied from, and those whose rows are read and written as 16 bytes.
struct Operands { Operand q, k, v, dout, out, dq, dk, dv; };

Operands operands_of(const BwdKernelProblem& of, const Build& build) {
  const BwdProblem& p = of.problem;
  const fmha::BwdSteps& s = of.steps;
  const int q = of.seqlen_q, k = of.seqlen_k;
  return {{"q", p.q, p.q_row, p.q_head, s.q, p.hdim_q, p.nhead_q, q, build.query_rows},
          {"k", p.k, p.k_row, p.k_head, s.k, p.hdim_q, p.nhead_k, k, build.keys},
          {"v", p.v, p.v_row, p.v_head, s.v, p.hdim_v, p.nhead_k, k, build.keys},
          {"dout", p.dout, p.dout_row, p.dout_head, s.dout, p.hdim_v, p.nhead_q, q, build.query_rows},
          {"out", p.out, p.out_row, p.out_head, s.out, p.hdim_v, p.nhead_q, q, 0},
          {"dq", p.dq, p.dq_row, p.dq_head, s.dq, p.hdim_q, p.nhead_q, q, 0},
          {"dk", p.dk, p.dk_row, p.dk_head, s.dk, p.hdim_q, p.nhead_k, k, 0},
          {"dv", p.dv, p.dv_row, p.dv_head, s.dv, p.hdim_v, p.nhead_k, k, 0}};
}

tilekiln_status check_problem(const BwdKernelProblem& of, const Operands& a) {
  for (const Operand* operand : {&a.q, &a.k, &a.v, &a.dout, &a.out, &a.dq, &a.dk, &a.dv})
    TILEKILN_TRY(check_operand(*operand));
  if (of.problem.softmax_scale > 0) return TILEKILN_OK;
  return fail_argument("softmax_scale", "was %g, must be above 0 on cuda",
                       static_cast<double>(of.problem.softmax_scale));
}

// Query tiles of a sequence; of a head over all of them; and from one head's to the next's (order.h).
struct Tiles { i64 of_longest, of_head, head_step; };

Tiles tiles_of(const BwdKernelProblem& of, const Packing& packing, const Build& build) {
  const i64 of_longest = parts(of.seqlen_q, build.query_rows);
  if (!packing.packed) return {of_longest, of_longest * of.batch, of_longest};
  const i64 rows = of.problem.features.group ? of.total_q : packing.rows_q * of.batch;
  const i64 all = rows / build.query_rows + of.batch, packed = all > of_longest ? all : of_longest;
  return {of_longest, packed, packed};
}

bool is_masked(const BwdProblem& p) { return p.features.mask && (p.window_left >= 0 || p.window_right >= 0); }
bool is_paired(const BwdProblem& p) { return is_masked(p) && p.window_left < 0; }

constexpr i64 kSmallSums = 256 << 20;  // bytes of workspace that a call may take whatever its size

// The last plan of a thread is kept: a training step asks for one again and again, four times a call.
Plan find_plan(const BwdKernelProblem& of, const Tiles& tiles, const Build& build, int workers) {
  const BwdProblem& p = of.problem;
  PlanShape shape;
  memset(static_cast<void*>(&shape), 0, sizeof(shape));  // padding too
  shape.heads = i64(of.batch) * p.nhead_k;
  shape.group = p.nhead_q / p.nhead_k;
  shape.rows = tiles.of_longest * build.query_rows;
  shape.keys = of.seqlen_k;
  shape.hdim = build.hdim;
  shape.tile_rows = build.query_rows;
  shape.key_rows = build.keys;
  shape.masked = is_masked(p);
  shape.paired = is_paired(p);
  shape.workers = workers;
  // Half of what the sums of dQ take, which packed sequences have by their rows; shares have theirs by the longest
  // sequence.
  const i64 dq_bytes = tiles.of_head * p.nhead_q * build.query_rows * build.hdim * 4;
  shape.sum_bytes = dq_bytes / 2 > kSmallSums ? dq_bytes / 2 : kSmallSums;
  static thread_local PlanShape known_shape;
  static thread_local Plan known;
  if (memcmp(&shape, &known_shape, sizeof(shape)) != 0) {
    known = plan_of(shape);
    known_shape = shape;
  }
  return known;
}

// The workspace: what the stages hand to each other, each part aligned to 128 bytes.
u64 place_workspace(const BwdKernelProblem& of, const Tiles& tiles, const Plan& plan, const Build& build,
                    Params* params) {
  u64 at = 0;
  const u64 all = static_cast<u64>(tiles.of_head) * static_cast<u64>(of.problem.nhead_q);
  const u64 rows = all * static_cast<u64>(build.query_rows), sums = all * static_cast<u64>(plan.partials);
  const auto place = [&]<class T>(u64 count, T** to) {
    *to = reinterpret_cast<T*>(of.workspace + at);
    at += (count * sizeof(T) + 127) / 128 * 128;
  };
  place(sums * static_cast<u64>(build.query_rows) * static_cast<u64>(build.hdim), &params->dq_sums);
  place(rows, &params->lse_log2);
  place(rows, &params->delta);
  place(sums, &params->counters);
  if (of.problem.features.sink) place(all, &params->sink_sums);
  if (plan.key_shares > 1) {
    const i64 shares = i64(of.batch) * of.problem.nhead_k * plan.key_shares;
    const i64 keys = parts(of.seqlen_k, build.keys) * build.keys;
    place(static_cast<u64>(shares * keys * build.hdim), &params->dk_sums);
    place(static_cast<u64>(shares * keys * build.hdim), &params->dv_sums);
  }
  return at;
}

void fill_scores(const BwdKernelProblem& of, Params* params) {
  const BwdProblem& p = of.problem;
  params->softmax_scale = p.softmax_scale;
  params->softcap = p.softcap;
  params->keep_scale = 1;
  cuda::fill_scores(p, params);
  // The slope of tanh without a cap is 1, and for a bias of -infinity 0, where a factor of 0 would make it NaN.
  if (!p.features.softcap) params->softcap_inner = 0x1p-126f;
  params->shift = p.top_left ? 0 : of.seqlen_k - of.seqlen_q;
  params->features = (is_masked(p) ? kMask : 0) | (is_paired(p) ? kPaired : 0) | (p.features.softcap ? kSoftcap : 0) |
                     (p.features.bias == fmha::Bias::alibi ? kAlibi : 0) |
                     (p.features.bias == fmha::Bias::elementwise ? kBias : 0) | (p.features.dropout ? kDropout : 0) |
                     (p.top_left ? 0 : kBottomRight);
}

void fill_addresses(const BwdKernelProblem& of, const Packing& packing, Params* params) {
  const BwdProblem& p = of.problem;
  const bool group = p.features.group;
  const auto rows = [&](i64 sequence, i64 head, i64 step, int64_t* batch_to, int64_t* head_to, int64_t* row_to,
                        bool keys) {
    *batch_to = keys ? packing.step_k(group, sequence, step) : packing.step_q(group, sequence, step);
    *head_to = head;
    *row_to = step;
  };
  const auto as16 = [](const void* data) { return static_cast<uint16_t*>(const_cast<void*>(data)); };
  params->out = as16(p.out), params->dout_rows = as16(p.dout);
  params->dq = as16(p.dq), params->dk = as16(p.dk), params->dv = as16(p.dv);
  params->dbias = as16(p.dbias), params->bias = as16(p.bias);
  rows(of.steps.out, p.out_head, p.out_row, &params->out_batch, &params->out_head, &params->out_row, false);
  rows(of.steps.dout, p.dout_head, p.dout_row, &params->dout_batch, &params->dout_head, &params->dout_row, false);
  rows(of.steps.dq, p.dq_head, p.dq_row, &params->dq_batch, &params->dq_head, &params->dq_row, false);
  rows(of.steps.dk, p.dk_head, p.dk_row, &params->dk_batch, &params->dk_head, &params->dk_row, true);
  rows(of.steps.dv, p.dv_head, p.dv_row, &params->dv_batch, &params->dv_head, &params->dv_row, true);
  rows(of.steps.bias, p.bias_head, p.bias_row, &params->bias_batch, &params->bias_head, &params->bias_row, false);
  const i64 steps = params->bias_batch | params->bias_head | params->bias_row;
  if (p.features.bias == fmha::Bias::elementwise && steps % 8 == 0 && reinterpret_cast<uintptr_t>(p.bias) % 16 == 0)
    params->features |= kBiasPieces;
  rows(of.steps.dbias, p.dbias_head, p.dbias_row, &params->dbias_batch, &params->dbias_head, &params->dbias_row, false);
  params->randval = p.features.store_randval ? p.randval : nullptr;
  rows(of.steps.randval, p.randval_head, p.randval_row, &params->randval_batch, &params->randval_head,
       &params->randval_row, false);
  params->lse = p.lse, params->delta_out = p.delta;
  params->lse_batch = packing.step_q(group, of.steps.lse, 1), params->lse_head = p.lse_head;
  params->alibi_slopes = p.alibi_slopes, params->alibi_batch = of.steps.alibi;
  params->sink = p.sink, params->d_sink = of.d_sink;
  if (!packing.packed) return;
  params->features |= kGroup;
  fill_lengths(of.lengths, group, packing, params);
}

// One stage of a call. `R`: the parameters of the main kernel `main`, in which `common_of` finds those that all have.
// find_packing(operands, packing) says how sequences lie; fill_operands(operands, packing, params) fills what the main
// kernel copies from.
template <class R, class FindPacking, class FillOperands>
tilekiln_status launch_stage(const Site& site, const BwdKernelProblem& of, const char* main, Params* (*common_of)(R*),
                             const FindPacking& find_packing, const FillOperands& fill_operands) {
  const BwdProblem& p = of.problem;
  const Kernel* const kernel = find_kernel(of);
  if (kernel == nullptr)
    return fail(TILEKILN_INTERNAL, "the library has a row of fmha_bwd for cuda without its kernel");
  const Build& build = build_of(*kernel);
  const Operands operands = operands_of(of, build);
  TILEKILN_TRY(check_problem(of, operands));
  Packing packing;
  TILEKILN_TRY(find_packing(operands, &packing));
  const int most = facts(site.device.id)->multiprocessors;  // all workers are resident together, one each
  if (of.workers > most)
    return fail_argument("workers", "was %d, must be at most %d on cuda:%d, its multiprocessors", of.workers, most,
                         site.device.id);
  const Tiles tiles = tiles_of(of, packing, build);
  const i64 blocks = tiles.of_longest * p.nhead_q * of.batch;
  if (blocks > INT32_MAX)
    return fail_argument("q", "had %lld blocks of %d queries over all heads, must have fewer than 2^31 on cuda", blocks,
                         build.query_rows);
  const Plan plan = find_plan(of, tiles, build, of.workers != 0 ? of.workers : most);
  R given = {};
  Params& params = *common_of(&given);
  const u64 bytes = place_workspace(of, tiles, plan, build, &params);
  if (of.workspace_bytes != nullptr) return *of.workspace_bytes = bytes, TILEKILN_OK;

  const bool is_main = of.stage == TILEKILN_BWD_DQ_DK_DV;
  if (is_main ? plan.workers == 0 : blocks == 0) return TILEKILN_OK;
  if (is_main) TILEKILN_TRY(fill_operands(operands, packing, &given));
  fill_scores(of, &params);
  fill_addresses(of, packing, &params);
  params.batch = of.batch, params.nhead_q = p.nhead_q;
  params.shares = p.nhead_k * plan.key_shares, params.key_shares = plan.key_shares;
  params.seqlen_q_most = of.seqlen_q, params.seqlen_k_most = of.seqlen_k;
  params.hdim_q = p.hdim_q, params.hdim_v = p.hdim_v;
  params.query_tiles = static_cast<int>(tiles.of_longest);
  params.key_tiles = static_cast<int>(parts(of.seqlen_k, build.keys));
  params.head_tiles = static_cast<int>(tiles.head_step);
  params.team = plan.team, params.passes = plan.passes, params.units = plan.units;
  params.team_units = plan.team_units, params.lists = plan.lists, params.partials = plan.partials;
  params.turn = plan.turn;
  if (plan.apart) params.features |= kApart;
  constexpr unsigned rows_threads = 256;  // of the first and the last stage
  if (is_main)
    return launch(site, {kernel,
                         main,
                         {static_cast<unsigned>(plan.workers), 1, 1},
                         static_cast<unsigned>(build.threads),
                         static_cast<unsigned>(build.shared_bytes),
                         &given,
                         true});
  const auto launch_rows = [&](const char* function, i64 grid) {
    return launch(site, {kernel, function, {static_cast<unsigned>(grid), 1, 1}, rows_threads, 0, &params, false});
  };
  if (of.stage == TILEKILN_BWD_DOT_DO_O) return launch_rows("fmha_bwd_prepare", blocks);
  if (plan.key_shares > 1)
    TILEKILN_TRY(launch_rows("fmha_bwd_sum_shares", i64(of.batch) * p.nhead_k * params.key_tiles));
  return launch_rows("fmha_bwd_convert", blocks);
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_bwd
