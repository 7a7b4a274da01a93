// SPDX-License-Identifier: MIT
// The waves engine of fmha_bwd's three stages: a checked call becomes the problem of each launch. Compiled with
// -DTILEKILN_TARGET=<the target's name>.
#include "kernels/attention/bwd_engine.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/hip/workspace.h"
#include "kernels/attention/hip/host.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _fmha_bwd_dq_dk_dv_waves)

namespace tilekiln::hip {
namespace {

using fmha::Dtype;

// The smallest kernel of the dtype that holds the head dims of the main stage's instance; null: the library has none.
const Kernel* find_backward(const BwdKernelProblem& of) {
  const bool bf16 = of.problem.features.dtype == Dtype::bf16;
  const int hdim = of.hdim_q > of.hdim_v ? of.hdim_q : of.hdim_v;
  const Kernel* best = nullptr;
  find_kernel("fmha_bwd_", [&](const Kernel& kernel) {
    const auto& build = build_as<BackwardBuild>(kernel);
    if ((build.bf16 != 0) != bf16 || build.hdim < hdim) return false;
    if (best == nullptr || build.hdim < build_as<BackwardBuild>(*best).hdim) best = &kernel;
    return false;
  });
  return best;
}

tilekiln_status check_problem(const BwdKernelProblem& of) {
  const BwdProblem& p = of.problem;
  const fmha::BwdSteps& s = of.steps;
  TILEKILN_TRY(check_steps("q", p.q, p.q_row, p.q_head, s.q, p.hdim_q));
  TILEKILN_TRY(check_steps("k", p.k, p.k_row, p.k_head, s.k, p.hdim_q));
  TILEKILN_TRY(check_steps("v", p.v, p.v_row, p.v_head, s.v, p.hdim_v));
  TILEKILN_TRY(check_steps("out", p.out, p.out_row, p.out_head, s.out, p.hdim_v));
  TILEKILN_TRY(check_steps("dout", p.dout, p.dout_row, p.dout_head, s.dout, p.hdim_v));
  TILEKILN_TRY(check_steps("dq", p.dq, p.dq_row, p.dq_head, s.dq, p.hdim_q));
  TILEKILN_TRY(check_steps("dk", p.dk, p.dk_row, p.dk_head, s.dk, p.hdim_q));
  TILEKILN_TRY(check_steps("dv", p.dv, p.dv_row, p.dv_head, s.dv, p.hdim_v));
  const auto far = [](i64 row) { return row < 0 || row > most_row; };
  if (p.features.bias == fmha::Bias::elementwise && far(p.bias_row))
    return fail_argument("bias",
                         "the stride from row to row was %lld elements, must be from 0 to %lld on hip: pass a copy",
                         p.bias_row, most_row);
  if (p.dbias != nullptr && far(p.dbias_row))
    return fail_argument("dbias", "the stride from row to row was %lld elements, must be from 0 to %lld on hip",
                         p.dbias_row, most_row);
  return TILEKILN_OK;
}

void fill_features(const BwdProblem& p, BackwardProblem* to) {
  const auto on = [&](bool given, BackwardFeature feature) { to->features |= given ? feature : 0; };
  on(fmha::fill_mask(p, to), kBwdWindow);
  on(p.features.bias == fmha::Bias::alibi, kBwdAlibi);
  on(p.features.bias == fmha::Bias::elementwise, kBwdBias);
  on(p.features.softcap, kBwdSoftcap);
  on(p.top_left, kBwdTopLeft);
  on(p.features.dropout, kBwdDropout);
  to->softmax_scale = p.softmax_scale;
  to->softcap = p.softcap;
  to->keep_scale = 1;
  if (fmha::fill_dropout(p, to)) to->dropout_threshold = core::dropout_threshold(p.dropout_p);
  to->randval = p.features.store_randval ? p.randval : nullptr;
}

void fill_arrays(const BwdKernelProblem& of, BackwardProblem* to) {
  const BwdProblem& p = of.problem;
  const fmha::BwdSteps& s = of.steps;
  const auto step = [&](i64 sequence) { return p.features.group ? 0 : sequence; };
  to->q = p.q, to->q_batch = step(s.q), to->q_head = p.q_head, to->q_row = static_cast<int>(p.q_row);
  to->k = p.k, to->k_batch = step(s.k), to->k_head = p.k_head, to->k_row = static_cast<int>(p.k_row);
  to->v = p.v, to->v_batch = step(s.v), to->v_head = p.v_head, to->v_row = static_cast<int>(p.v_row);
  to->out = p.out, to->out_batch = step(s.out), to->out_head = p.out_head, to->out_row = static_cast<int>(p.out_row);
  to->dout = p.dout, to->dout_batch = step(s.dout), to->dout_head = p.dout_head;
  to->dout_row = static_cast<int>(p.dout_row);
  to->dq = p.dq, to->dq_batch = step(s.dq), to->dq_head = p.dq_head, to->dq_row = static_cast<int>(p.dq_row);
  to->dk = p.dk, to->dk_batch = step(s.dk), to->dk_head = p.dk_head, to->dk_row = static_cast<int>(p.dk_row);
  to->dv = p.dv, to->dv_batch = step(s.dv), to->dv_head = p.dv_head, to->dv_row = static_cast<int>(p.dv_row);
  to->bias = p.bias, to->bias_batch = step(s.bias), to->bias_head = p.bias_head, to->bias_row = p.bias_row;
  to->dbias = p.dbias, to->dbias_batch = step(s.dbias), to->dbias_head = p.dbias_head, to->dbias_row = p.dbias_row;
  to->randval_batch = step(s.randval), to->randval_head = p.randval_head, to->randval_row = p.randval_row;
  to->lse = p.lse, to->lse_batch = step(s.lse), to->lse_head = p.lse_head, to->delta_out = p.delta;
  to->alibi_slopes = p.alibi_slopes, to->alibi_batch = s.alibi;
  to->sink = p.sink, to->d_sink = of.d_sink;
  const fmha::DeviceLengths& at = of.lengths;
  const auto either = [](const int* first, const int* second) { return first != nullptr ? first : second; };
  if (p.features.group) {
    to->seqstart_q = either(at.seqstart_q, at.cu_seqlens_q);
    to->seqstart_k = either(at.seqstart_k, at.cu_seqlens_k);
  }
  to->seqlens_q = at.seqlen_q, to->seqlens_k = at.seqlen_k;
  to->cu_seqlens_q = either(at.cu_seqlens_q, to->seqstart_q);
  to->cu_seqlens_k = either(at.cu_seqlens_k, to->seqstart_k);
  to->total_q = at.total_q > 0 ? at.total_q : INT32_MAX, to->total_k = at.total_k > 0 ? at.total_k : INT32_MAX;
  if (p.features.group && of.total_q < to->total_q) to->total_q = static_cast<int>(of.total_q);
}

tilekiln_status launch_waves(const Site& site, const void* problem) {
  const auto& of = *static_cast<const BwdKernelProblem*>(problem);
  const BwdProblem& p = of.problem;
  const Kernel* const kernel = find_backward(of);
  if (kernel == nullptr) return fail_kernel("fmha_bwd");
  const auto& build = build_as<BackwardBuild>(*kernel);
  TILEKILN_TRY(check_problem(of));
  const i64 row_tiles = parts(of.seqlen_q, kRowTile), key_tiles = parts(of.seqlen_k, build.tile_k);
  TILEKILN_TRY(check_blocks(p.nhead_q, of.batch, row_tiles));
  TILEKILN_TRY(check_blocks(p.nhead_q, of.batch, key_tiles * build.parts));
  if (p.features.deterministic && i64(of.batch) * p.nhead_k * (key_tiles + 1) > fmha::max_scheduled_chunks)
    return fail_argument("deterministic",
                         "was 1 with more than %lld tiles of keys over all heads, must be 0 above that",
                         static_cast<i64>(fmha::max_scheduled_chunks));
  BackwardProblem row = {};
  const fmha::BwdWorkspaceShape shape = shape_of(of, build);
  const u64 bytes = place_workspace(of, shape, &row);
  if (of.workspace_bytes != nullptr) return *of.workspace_bytes = bytes, TILEKILN_OK;
  fill_features(p, &row);
  fill_arrays(of, &row);
  row.batch = of.batch;
  row.nhead_q = p.nhead_q;
  row.heads_per_key_head = p.nhead_k > 0 ? p.nhead_q / p.nhead_k : 1;
  row.seqlen_q = of.seqlen_q;
  row.seqlen_k = of.seqlen_k;
  row.hdim_q = p.hdim_q;
  row.hdim_v = p.hdim_v;
  const i64 workers = fill_schedule(shape, &row);
  const auto run = [&](const char* function, i64 x, i64 y, i64 z, int threads) -> tilekiln_status {
    if (x == 0 || y == 0 || z == 0) return TILEKILN_OK;
    return launch(site, {kernel,
                         function,
                         {static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z)},
                         static_cast<unsigned>(threads),
                         &row,
                         sizeof(row)});
  };
  if (of.stage == TILEKILN_BWD_CONVERT_DQ)
    return run("tilekiln_fmha_bwd_convert", row_tiles, p.nhead_q, of.batch, kRowThreads);
  if (of.stage == TILEKILN_BWD_DOT_DO_O) {
    if (shape.group_schedule()) TILEKILN_TRY(run("tilekiln_fmha_bwd_schedule", 1, of.batch != 0, 1, kScheduleThreads));
    return run("tilekiln_fmha_bwd_prepare", row_tiles, p.nhead_q, of.batch, kRowThreads);
  }
  if (key_tiles == 0 || p.nhead_k == 0 || of.batch == 0) return TILEKILN_OK;
  if (shape.deterministic) return run("tilekiln_fmha_bwd", workers * build.parts, 1, 1, build.threads);
  return run("tilekiln_fmha_bwd", key_tiles * build.parts, p.nhead_k, of.batch, build.threads);
}

}  // namespace
}  // namespace tilekiln::hip

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::hip::launch_waves,
                                                                           tilekiln::hip::any};
