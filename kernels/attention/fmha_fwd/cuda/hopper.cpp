// SPDX-License-Identifier: MIT
// The hopper engine of fmha_fwd: a checked call becomes the parameters of one launch.
#include "kernels/attention/fmha_fwd/cuda/launch.h"

namespace tilekiln::cuda::fmha_fwd {
namespace {

// Rows of the bias are whole pieces of 16 bytes, and no random bytes need their place.
bool in_pieces(const FwdProblem& p, const Params& params) {
  const i64 steps = params.bias_batch | params.bias_head | params.bias_row;
  return p.features.bias == fmha::Bias::elementwise && !p.features.dropout && steps % 8 == 0 &&
         reinterpret_cast<uintptr_t>(params.bias) % 16 == 0;
}

tilekiln_status launch_hopper(const Site& site, const void* problem) {
  const auto& of = *static_cast<const FwdKernelProblem*>(problem);
  const FwdProblem& p = of.problem;
  const Kernel* const fixed = engine_of(site).kernel;
  const Kernel* const kernel = fixed != nullptr ? fixed : find_kernel(*site.choice, p.features.dtype);
  if (kernel == nullptr) return fail_kernel();
  const Build& build = build_of(*kernel);
  const Operands operands = operands_of(of, build);
  TILEKILN_TRY(check_problem(of, operands));
  Packing packing;
  const fmha::DeviceLengths& at = of.lengths;
  const bool packed = p.features.group || at.seqlen_q || at.seqlen_k || at.cu_seqlens_q || at.cu_seqlens_k;
  TILEKILN_TRY(find_packing(packed, p.features.group, of.batch, operands.q, nullptr, operands.k, operands.v, &packing));
  if (of.batch == 0 || p.nhead_q == 0 || of.seqlen_q == 0 || p.hdim_v == 0) return TILEKILN_OK;
  if (!packing.packed && of.seqlen_q <= of.min_seqlen_q) return TILEKILN_OK;
  Params params = {};
  TILEKILN_TRY(fill_tiles(of, is_fp8(p.features.dtype) ? 1 : 2, build, &params));
  TILEKILN_TRY(fill_maps(of, operands, packing.packed, site.device.id, &params));
  fill_scores(p, 0, &params);
  fill_addresses(of, packing, &params);
  if (build.bias_pieces != 0 && in_pieces(p, params)) params.features |= kBiasPieces;
  return launch_dealt(site, kernel, build, &params);
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_fwd

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        hopper) = {tilekiln::cuda::fmha_fwd::launch_hopper};
