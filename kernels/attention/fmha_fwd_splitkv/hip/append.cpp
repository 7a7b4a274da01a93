// SPDX-License-Identifier: MIT
// The append engine: a checked call becomes the problem of one launch.
#include "kernels/attention/fmha_fwd_appendkv/hip/problem.h"
#include "kernels/attention/fmha_fwd_splitkv/hip/cache.h"

namespace tilekiln::hip {
namespace {

using fmha::AppendKernelProblem;

void fill_arrays(const AppendKernelProblem& of, AppendProblem* to) {
  const fmha::AppendProblem& p = of.problem;
  const bool paged = p.pages.page_size != 0;
  to->q = p.q, to->k = p.k, to->v = p.v, to->knew = p.knew, to->vnew = p.vnew;
  to->q_batch = of.steps.q, to->q_head = p.q_head, to->q_row = p.q_row;
  to->k_page = paged ? p.pages.k_page : of.steps.k, to->k_head = p.k_head, to->k_key = p.k_row;
  to->v_page = paged ? p.pages.v_page : of.steps.v, to->v_head = p.v_head, to->v_key = p.v_row;
  to->knew_batch = of.steps.knew, to->knew_head = p.knew_head, to->knew_row = p.knew_row;
  to->vnew_batch = of.steps.vnew, to->vnew_head = p.vnew_head, to->vnew_row = p.vnew_row;
  to->rotary_cos = p.rotary_cos, to->rotary_sin = p.rotary_sin;
  to->cos_row = p.rotary_cos_row, to->sin_row = p.rotary_sin_row;
  to->positions = of.positions;
  to->rotary_dim = p.rope == fmha::Rope::none ? 0 : p.rotary_dim;
  to->interleaved = p.rope == fmha::Rope::interleaved ? 1 : 0;
  to->rotary_fp32 = p.rotary_fp32 ? 1 : 0;
  to->q_advances = p.q_advances ? 1 : 0;
  to->nhead_q = p.nhead_q, to->nhead_k = p.nhead_k, to->hdim_q = p.hdim_q, to->hdim_v = p.hdim_v;
}

tilekiln_status launch_append(const Site& site, const void* problem) {
  const auto& of = *static_cast<const AppendKernelProblem*>(problem);
  const fmha::AppendProblem& p = of.problem;
  if (p.q_gamma != nullptr)
    return fail_argument("q_gamma", "was given, must be null on an AMD GPU: call rmsnorm2d for the heads before");
  const Kernel* const kernel = find_kernel("fmha_append_", [&](const Kernel& one) {
    const auto& build = build_as<AppendBuild>(one);
    return (build.bf16 != 0) == (p.dtype == fmha::KvDtype::bf16) && (build.fp8 != 0) == (p.dtype == fmha::KvDtype::fp8);
  });
  if (kernel == nullptr) return fail_kernel("fmha_append");
  const int tokens = of.seqlen_q > of.seqlen_new ? of.seqlen_q : of.seqlen_new;
  TILEKILN_TRY(check_blocks(p.nhead_q, of.batch, 0));
  AppendProblem row = {};
  fmha::fill_places(of.places, p.pages, &row.at);
  row.at.seqlen_q_most = of.seqlen_q;
  row.at.seqlen_k_most = INT32_MAX;
  row.seqlen_new = of.seqlen_new;
  fill_arrays(of, &row);
  return launch(site, {kernel,
                       "tilekiln_fmha_append",
                       {static_cast<unsigned>(tokens), static_cast<unsigned>(of.batch), 1},
                       static_cast<unsigned>(build_as<AppendBuild>(*kernel).threads),
                       &row,
                       sizeof(row)});
}

}  // namespace
}  // namespace tilekiln::hip

extern "C" const tilekiln::hip::Engine TILEKILN_ENGINE(TILEKILN_TARGET, append) = {tilekiln::hip::launch_append,
                                                                                   tilekiln::hip::any};
