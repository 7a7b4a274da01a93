// SPDX-License-Identifier: MIT
// The decode engine of the families over a KV cache: a checked call becomes the row of one launch.
#include <algorithm>

#include "kernels/attention/fmha_fwd_splitkv/cuda/fill.h"

namespace tilekiln::cuda::fmha_decode {
namespace {

using fmha::Bias;

constexpr i64 most_blocks = 65535;  // along y

// Tells whether q is e4m3.
bool reads_bytes(const KvProblem& p) { return p.dtype == fmha::KvDtype::fp8 || p.dtype == fmha::KvDtype::fp8bf16; }

tilekiln_status check_problem(const KvKernelProblem& of) {
  const KvProblem& p = of.problem;
  const int size = cache_bytes(p.dtype), vector = 16 / size;
  TILEKILN_TRY(check_hdim("q", p.hdim_q, vector));
  TILEKILN_TRY(check_hdim("v", p.hdim_v, vector));
  const int size_q = reads_bytes(p) ? 1 : 2, size_out = p.dtype == fmha::KvDtype::fp8 ? 1 : 2;
  TILEKILN_TRY(check_steps("q", p.q, 2, {p.q_row, p.q_head, of.steps.q}, size_q));
  TILEKILN_TRY(check_steps("out", p.out, 2, {p.out_row, p.out_head, of.steps.out}, size_out));
  const fmha::KvPages& pages = p.pages;
  const bool vectorized = pages.page_size != 0 && pages.layout == fmha::KvLayout::vectorized;
  TILEKILN_TRY(check_steps("k", p.k, vector,
                           {vectorized ? 0 : p.k_row, p.k_head, vectorized ? pages.k_chunk : 0,
                            pages.page_size != 0 ? pages.k_page : of.steps.k},
                           size));
  return check_steps("v", p.v, vector,
                     {vectorized ? 0 : p.v_row, p.v_head, vectorized ? pages.v_chunk : 0,
                      pages.page_size != 0 ? pages.v_page : of.steps.v},
                     size);
}

// Tells whether every query sees every key: one query at the end of its sequence, under a causal mask, too.
bool sees_all(const KvKernelProblem& of) {
  const KvProblem& p = of.problem;
  return !p.features.mask || (p.window_left < 0 && (p.window_right < 0 || (of.seqlen_q == 1 && !p.top_left)));
}

// True: the kernels that know more than products and the softmax are needed.
bool fill_scores(const KvKernelProblem& of, Params* params) {
  const KvProblem& p = of.problem;
  const bool all = sees_all(of);
  const int changes = (all ? 0 : kMask) | (p.features.softcap ? kSoftcap : 0) |
                      (p.features.bias == Bias::alibi ? kAlibi : 0) |
                      (p.features.bias == Bias::elementwise ? kBias : 0);
  const bool general = changes != 0 || !(p.softmax_scale > 0);
  params->features |= changes | (reads_bytes(p) ? kBytesIn : 0);
  if (!p.top_left) params->features |= kBottomRight;
  params->left = fmha::side_of(!all, p.window_left);
  params->right = fmha::side_of(!all, p.window_right);
  params->sink_keys = all ? 0 : p.sink_keys;
  params->softmax_scale = p.softmax_scale;
  params->score_scale_log2 = general ? log2_e : p.softmax_scale * log2_e;
  params->softcap = p.softcap;
  const bool group = p.features.group;
  params->bias = p.bias, params->bias_batch = group ? 0 : of.steps.bias;
  params->bias_head = p.bias_head, params->bias_row = p.bias_row;
  params->alibi_slopes = p.alibi_slopes, params->alibi_batch = of.steps.alibi;
  params->sink = p.sink;
  return general;
}

// True: pages are vectorized.
bool fill_cache(const KvKernelProblem& of, Params* params) {
  const KvProblem& p = of.problem;
  const bool group = p.features.group;
  params->q = p.q, params->k = p.k, params->v = p.v;
  params->q_descale = p.q_descale, params->k_descale = p.k_descale, params->v_descale = p.v_descale;
  params->k_page_scale = p.k_page_scale, params->v_page_scale = p.v_page_scale;
  params->page_scale_page = p.page_scale_page, params->page_scale_head = p.page_scale_head;
  params->q_batch = group ? 0 : of.steps.q, params->q_head = p.q_head, params->q_row = p.q_row;
  params->k_head = p.k_head, params->v_head = p.v_head;
  params->k_key = p.k_row, params->v_key = p.v_row;
  const int vector = 16 / cache_bytes(p.dtype);
  params->k_chunk = params->v_chunk = vector;
  if (p.pages.page_size == 0) {
    params->k_page = group ? 0 : of.steps.k;
    params->v_page = group ? 0 : of.steps.v;
    return false;
  }
  params->k_page = p.pages.k_page;
  params->v_page = p.pages.v_page;
  if (p.pages.layout != fmha::KvLayout::vectorized) return false;
  params->k_key = params->v_key = vector;
  params->k_chunk = p.pages.k_chunk;
  params->v_chunk = p.pages.v_chunk;
  return true;
}

// Splits of a step; 0: two launches and as many splits as keep the processors busy are faster. Behind 128 tokens a step takes 6.8 us for 9.7
// (D64, 32 heads over 8), behind 4,096 14.3 for 12.3; H200.
int step_splits(const KvKernelProblem& of, i64 workers) {
  constexpr i64 least_keys = 192, most_keys = 2048;  // the first: what a block has on its way at once
  const i64 blocks = i64(of.batch) * of.problem.nhead_k;
  if (blocks > workers || of.seqlen_k > most_keys) return 0;
  int splits = 1;
  while (splits < kStepSplits && blocks * splits <= workers && splits * least_keys < of.seqlen_k) splits *= 2;
  return splits;
}

// Launches a step, append and attention, where its kernel takes the call, and says so in of.append->attended.
tilekiln_status launch_step(const Site& site, const KvKernelProblem& of, const Kernel* kernel, const Params& params) {
  const KvProblem& p = of.problem;
  const Build& build = build_of(*kernel);
  const fmha::AppendProblem& from = of.append->problem;
  const bool rotates = from.rope != fmha::Rope::none;
  const i64 rows = p.nhead_q / p.nhead_k;
  const int splits = step_splits(of, facts(site.device.id)->multiprocessors), all = facts(site.device.id)->shared_bytes;
  const int bytes = build.shared_bytes + step_bytes(splits, static_cast<int>(rows), p.hdim_v);
  if (build.early == 0 || build.bytes != 0 || rows > build.rows || splits == 0 || bytes > all ||
      (rotates && p.hdim_q != build.hdim))
    return TILEKILN_OK;
  StepParams step = {params, {}};
  step.decode.splits = splits;
  step.step = {static_cast<const uint16_t*>(from.knew),
               static_cast<const uint16_t*>(from.vnew),
               static_cast<uint16_t*>(from.q),
               from.rotary_cos,
               from.rotary_sin,
               of.append->steps.knew,
               from.knew_head,
               of.append->steps.vnew,
               from.vnew_head,
               from.rotary_cos_row,
               from.rotary_sin_row,
               of.append->positions,
               rotates ? 1 : 0,
               from.rotary_fp32 ? 1 : 0};
  *of.append->attended = true;
  const int most = std::min(all, build.shared_bytes + step_bytes(kStepSplits, build.rows, build.hdim));
  return launch(site, {kernel,
                       "fmha_decode_step",
                       {static_cast<unsigned>(i64(of.batch) * p.nhead_k * splits), 1, 1},
                       static_cast<unsigned>(build.threads),
                       static_cast<unsigned>(bytes),
                       &step,
                       false,
                       true,
                       static_cast<unsigned>(splits),
                       static_cast<unsigned>(most)});
}

tilekiln_status launch_decode(const Site& site, const void* problem);

// Launches a call with its own splits, in memory of the launch, and what combines them.
tilekiln_status launch_both(const Site& site, const KvKernelProblem& of) {
  KvKernelProblem split = of;
  split.num_splits = of.own_splits, split.own_splits = 1;
  const size_t parts = size_t(of.batch) * size_t(of.seqlen_q) * size_t(of.problem.nhead_q) * size_t(of.own_splits);
  LaunchMemory memory;
  TILEKILN_TRY(memory.take(site, (parts * size_t(of.problem.hdim_v + 1) * sizeof(float) + 15) / 16 * 16, 0));
  split.part_out = static_cast<float*>(memory.data()),
  split.part_lse = split.part_out + parts * size_t(of.problem.hdim_v);
  TILEKILN_TRY(launch_decode(site, &split));
  return combine_parts(site, split);
}

tilekiln_status launch_decode(const Site& site, const void* problem) {
  const auto& of = *static_cast<const KvKernelProblem*>(problem);
  const KvProblem& p = of.problem;
  TILEKILN_TRY(check_problem(of));
  const Kernel* const kernel = find_kernel(p);
  if (kernel == nullptr) return fail_kernel("fmha_decode");
  if (of.own_splits > 1 && of.append == nullptr) return launch_both(site, of);
  const Build& build = build_of(*kernel);
  const i64 rows = i64(of.seqlen_q) * (p.nhead_q / p.nhead_k);
  const bool many = rows > build.rows;  // a tile of rows a warp
  const i64 most = many ? build.rows * (build.threads / 32) : build.rows, tiles = (rows + most - 1) / most;
  const i64 blocks = i64(of.batch) * p.nhead_k * of.num_splits;
  if (tiles > most_blocks) {
    return fail_argument("q",
                         "had %lld rows of queries to a key head, must have at most %lld in a launch of this instance",
                         rows, most_blocks * most);
  }
  if (blocks > INT32_MAX) {
    return fail_argument(
        "q", "had %lld pairs of a sequence and a key head, times splits, must have fewer than 2^31 on cuda", blocks);
  }
  Params params = {};
  fill_params(of, &params);
  const bool vectorized = fill_cache(of, &params), general = fill_scores(of, &params);
  if (of.append != nullptr) return vectorized || general ? TILEKILN_OK : launch_step(site, of, kernel, params);
  static const char* const functions[2][2][2] = {
      {{"fmha_decode_linear", "fmha_decode_linear_rows"},
       {"fmha_decode_linear_general", "fmha_decode_linear_general_rows"}},
      {{"fmha_decode_vectorized", "fmha_decode_vectorized_rows"},
       {"fmha_decode_vectorized_general", "fmha_decode_vectorized_general_rows"}}};
  return launch(site, {kernel,
                       functions[vectorized][general][many],
                       {static_cast<unsigned>(blocks), static_cast<unsigned>(tiles), 1},
                       static_cast<unsigned>(build.threads),
                       static_cast<unsigned>(build.shared_bytes),
                       &params,
                       false,
                       build.early != 0});
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_decode

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        decode) = {tilekiln::cuda::fmha_decode::launch_decode};
