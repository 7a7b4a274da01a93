// SPDX-License-Identifier: MIT
// Attention backward on Hopper for 16-bit tensors, bit-reproducible: dq, dk and dv, the latter summed over the query
// heads of a group.
//
//     P = exp(S - lse),  dV = P^T dO,  dP = dO V^T,  dS = P o (dP - delta),  dK = scale dS^T Q,  dQ = scale dS K
//
// With dropout P of dV and dP are dropped and scaled; with a soft cap dS is multiplied with the cap's slope 1 - tanh^2.
// The loop over query tiles has a copy for each, one for neither, and one that asks the features (`Extras`).
//
// A CTA holds a tile of keys and walks over the query tiles that see it: narrow.h for head dims to 128, wide.h above.
//
// Warpgroup 0: warp 0 loads; the next ones see to it that dQ is added to its sum in L2 in the order of order.h. The
// other ones compute. All CTAs must be resident together: a writer waits for adds of others.
//
// -D: HDIM (64, 128, 192 or 256), HDIM_V (HDIM, or 128 of 192), LOADER_REGISTERS, REGISTERS, DQ_REGISTERS;
// TILEKILN_FP16 for fp16.
#if HDIM > 128
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/wide.h"
#else
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/narrow.h"
#endif
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/queries.h"

using namespace tilekiln::cuda;

extern "C" __constant__ fmha_bwd::Build fmha_bwd_build = {
    fmha_bwd::kHdim,    fmha_bwd::kHdimV,         fmha_bwd::kQueryRows,           fmha_bwd::kKeys,
    fmha_bwd::kThreads, sizeof(fmha_bwd::Shared), std::is_same_v<BuildHalf, fp16>};

extern "C" __global__ void __launch_bounds__(fmha_bwd::kThreads, 1)
    fmha_bwd_hopper(const __grid_constant__ fmha_bwd::Params p) {
  using namespace fmha_bwd;
  auto& s = shared_memory<Shared>();
  const auto moves = [&](const Warpgroup& w) {
    if (p.features & kGroup)
      move<true>(p, s, w);
    else
      move<false>(p, s, w);
  };
  run(p, s, moves, [&](const Warpgroup& w) { compute_dq(p, s, w); });
}
