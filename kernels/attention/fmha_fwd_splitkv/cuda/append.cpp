// SPDX-License-Identifier: MIT
// The append engine: a checked call becomes the row of one launch.
#include "kernels/attention/fmha_fwd_appendkv/cuda/params.h"
#include "kernels/attention/fmha_fwd_splitkv/cuda/launch.h"

extern "C" __attribute__((weak, visibility("hidden")))
const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET, decode);

namespace tilekiln::cuda::fmha_append {
namespace {

using fmha::AppendKernelProblem;
using fmha::AppendProblem;

// Elements of a byte are copied as pairs, of 16 bits.
tilekiln_status halve(const AppendKernelProblem& of, Params* params) {
  const AppendProblem& p = of.problem;
  TILEKILN_TRY(check_hdim("knew", p.hdim_q, 2));
  TILEKILN_TRY(check_hdim("vnew", p.hdim_v, 2));
  TILEKILN_TRY(check_steps("k", p.k, 2, {params->k_page, p.k_head, p.k_row}, 1));
  TILEKILN_TRY(check_steps("v", p.v, 2, {params->v_page, p.v_head, p.v_row}, 1));
  TILEKILN_TRY(check_steps("knew", p.knew, 2, {of.steps.knew, p.knew_head, p.knew_row}, 1));
  TILEKILN_TRY(check_steps("vnew", p.vnew, 2, {of.steps.vnew, p.vnew_head, p.vnew_row}, 1));
  for (int64_t* const step : {&params->k_page, &params->k_head, &params->k_key, &params->v_page, &params->v_head,
                              &params->v_key, &params->knew_batch, &params->knew_head, &params->knew_row,
                              &params->vnew_batch, &params->vnew_head, &params->vnew_row})
    *step /= 2;
  params->hdim_q /= 2, params->hdim_v /= 2;
  return TILEKILN_OK;
}

void fill_norms(const AppendProblem& p, Params* params) {
  params->q_gamma = p.q_gamma;
  params->k_gamma = p.k_gamma;
  params->norm_epsilon = p.norm_epsilon;
  params->gamma_fp32 = p.gamma_fp32 ? 1 : 0;
  params->norm_rounds = p.norm_rounds ? 1 : 0;
}

// Tells whether all lies in pieces of 16 bytes, and heads are rotated whole or not at all.
bool is_wide(const Params& p) {
  const auto whole = [](const void* data, std::initializer_list<i64> steps) {
    bool good = reinterpret_cast<uintptr_t>(data) % 16 == 0;
    for (const i64 step : steps) good = good && step % 8 == 0;
    return good;
  };
  const int table = p.rotary_fp32 ? 2 : 1;
  const bool rotates = p.rotary_dim != 0 && p.interleaved == 0 && p.rotary_dim == p.hdim_q && p.rotary_dim % 16 == 0 &&
                       (p.q == nullptr || whole(p.q, {p.q_batch, p.q_head, p.q_row})) &&
                       whole(p.rotary_cos, {p.cos_row * table}) && whole(p.rotary_sin, {p.sin_row * table});
  return (p.rotary_dim == 0 || rotates) && p.hdim_q % 8 == 0 && p.hdim_v % 8 == 0 &&
         whole(p.k, {p.k_page, p.k_head, p.k_key}) && whole(p.v, {p.v_page, p.v_head, p.v_key}) &&
         whole(p.knew, {p.knew_batch, p.knew_head, p.knew_row}) &&
         whole(p.vnew, {p.vnew_batch, p.vnew_head, p.vnew_row});
}

// Tells whether the decode kernel may append, too: one token of every sequence to a linear cache, rotated whole or not
// at all.
bool may_be_step(const AppendKernelProblem& of, const Params& params) {
  const AppendProblem& p = of.problem;
  return of.attention != nullptr && p.q_gamma == nullptr && params.wide != 0 && params.seqlen_k != nullptr &&
         params.first_is_start == 0 && p.pages.page_size == 0 && p.q != nullptr && p.dtype != fmha::KvDtype::fp8 &&
         params.hdim_q % 32 == 0 && of.attention->problem.q == p.q;
}

tilekiln_status launch_append(const Site& site, const void* problem) {
  const auto& of = *static_cast<const AppendKernelProblem*>(problem);
  const AppendProblem& p = of.problem;
  const auto build_of = [](const Kernel& one) { return static_cast<const Build*>(one.build); };
  const Kernel* const kernel = find_kernel(
      "fmha_append", [&](const Kernel& one) { return (build_of(one)->fp16 != 0) == (p.dtype == fmha::KvDtype::fp16); });
  if (kernel == nullptr) return fail_kernel("fmha_append");
  const i64 blocks = i64(of.batch) * (of.seqlen_q > of.seqlen_new ? of.seqlen_q : of.seqlen_new);
  if (blocks > INT32_MAX)
    return fail_argument("knew", "had %lld tokens of all sequences, must have fewer than 2^31 on cuda", blocks);
  Params params = {};
  fmha::fill_append(of, &params);
  if (p.dtype == fmha::KvDtype::fp8) TILEKILN_TRY(halve(of, &params));
  fill_norms(p, &params);
  params.batch = of.batch;
  params.wide = is_wide(params) ? 1 : 0;
  const Engine* const decode = &TILEKILN_ENGINE(TILEKILN_TARGET, decode);
  if (may_be_step(of, params) && decode != nullptr) {
    fmha::KvKernelProblem attention = *of.attention;
    attention.append = &of;
    TILEKILN_TRY(decode->launch(site, &attention));
    if (*of.attended) return TILEKILN_OK;
  }
  const auto threads = static_cast<unsigned>(build_of(*kernel)->threads);
  const bool early = build_of(*kernel)->early != 0;
  const char* const name = p.q_gamma != nullptr ? "fmha_append_norms" : "fmha_append";
  return launch(site, {kernel, name, {static_cast<unsigned>(blocks), 1, 1}, threads, 0, &params, false, early});
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_append

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        append) = {tilekiln::cuda::fmha_append::launch_append};
