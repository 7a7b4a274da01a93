// SPDX-License-Identifier: MIT
// The ampere engine of the families over a KV cache: many queries, by the kernels of fmha_fwd. What copies of 16 bytes cannot follow
// the decode engine answers.
#include "kernels/attention/fmha_fwd/cuda/ampere_launch.h"
#include "kernels/attention/fmha_fwd/cuda/fill.h"
#include "kernels/attention/fmha_fwd_splitkv/cuda/launch.h"
#include "kernels/attention/fmha_fwd_splitkv/cuda/queries.h"

namespace tilekiln::cuda::fmha_fwd {
namespace {

// False: pieces of 16 bytes do not lie so.
bool can_copy(const KvKernelProblem& of) {
  const KvProblem& p = of.problem;
  const fmha::KvPages& pages = p.pages;
  if (pages.page_size != 0 && pages.layout == fmha::KvLayout::vectorized) return false;
  if (p.hdim_q % 8 != 0 || p.hdim_v % 8 != 0 || !(p.softmax_scale > 0)) return false;
  const auto follows = [](const void* data, std::initializer_list<i64> steps) {
    bool good = reinterpret_cast<uintptr_t>(data) % 16 == 0;
    for (const i64 step : steps) good = good && step % 8 == 0;
    return good;
  };
  return follows(p.q, {p.q_row, p.q_head, of.steps.q}) && follows(p.k, {p.k_row, p.k_head, k_step(of)}) &&
         follows(p.v, {p.v_row, p.v_head, v_step(of)}) && follows(p.out, {p.out_row, p.out_head, of.steps.out});
}

tilekiln_status launch_ampere(const Site& site, const void* problem) {
  const auto& of = *static_cast<const KvKernelProblem*>(problem);
  const KvProblem& p = of.problem;
  const Kernel* const kernel = find_kernel(p);
  if (kernel == nullptr) return fail_kernel("fmha_fwd");
  if (!can_copy(of)) return launch_decode(site, of);
  AmpereParams params = {};
  const Build& build = build_of(*kernel);
  TILEKILN_TRY(fill_tiles(of, build, &params.common));
  fill_places(of.places, p.pages, &params.common);
  fill_scores(p, kGroup | kCache, &params.common);
  const auto step = [&](i64 sequence) { return p.features.group ? 0 : sequence; };
  fill_results(of, step(of.steps.out), p.out_row, step(of.steps.lse), step(of.steps.bias), &params.common);
  fill_operands(p, {step(of.steps.q), k_step(of), v_step(of)}, &params);
  return launch_tiles(site, kernel, p.pages.page_size != 0 ? "fmha_fwd_ampere_pages" : "fmha_fwd_ampere", build,
                      params);
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_fwd

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        ampere) = {tilekiln::cuda::fmha_fwd::launch_ampere};
