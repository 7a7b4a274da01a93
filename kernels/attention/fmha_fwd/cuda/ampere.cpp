// SPDX-License-Identifier: MIT
// The ampere engine of fmha_fwd: a checked call becomes the parameters of one launch, a block of threads for a block of queries.
#include "kernels/attention/fmha_fwd/cuda/ampere_launch.h"
#include "kernels/attention/fmha_fwd/cuda/launch.h"

namespace tilekiln::cuda::fmha_fwd {
namespace {

tilekiln_status launch_ampere(const Site& site, const void* problem) {
  const auto& of = *static_cast<const FwdKernelProblem*>(problem);
  const FwdProblem& p = of.problem;
  const Kernel* const kernel = find_kernel(*site.choice, p.features.dtype);
  if (kernel == nullptr) return fail_kernel();
  const Build& build = build_of(*kernel);
  TILEKILN_TRY(check_problem(of, operands_of(of, build)));
  const fmha::DeviceLengths& at = of.lengths;
  // Rows are counted from the start of their sequence, whose stride is any.
  const Packing packing = {p.features.group || at.seqlen_q || at.seqlen_k || at.cu_seqlens_q || at.cu_seqlens_k, 0, 0};
  if (of.batch == 0 || p.nhead_q == 0 || of.seqlen_q == 0 || p.hdim_v == 0) return TILEKILN_OK;
  if (!packing.packed && of.seqlen_q <= of.min_seqlen_q) return TILEKILN_OK;
  AmpereParams params = {};
  TILEKILN_TRY(fill_tiles(of, 2, build, &params.common));
  fill_scores(p, 0, &params.common);
  fill_addresses(of, packing, &params.common);
  const auto step = [&](i64 sequence) { return p.features.group ? 0 : sequence; };
  fill_operands(p, {step(of.steps.q), step(of.steps.k), step(of.steps.v)}, &params);
  return launch_tiles(site, kernel, "fmha_fwd_ampere", build, params);
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_fwd

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        ampere) = {tilekiln::cuda::fmha_fwd::launch_ampere};
