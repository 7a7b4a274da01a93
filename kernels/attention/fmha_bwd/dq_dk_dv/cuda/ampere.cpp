// SPDX-License-Identifier: MIT
// The ampere engine of fmha_bwd's three stages: where the rows lie that the main kernel copies.
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/ampere_params.h"
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/launch.h"

namespace tilekiln::cuda::fmha_bwd {
namespace {

tilekiln_status launch_ampere(const Site& site, const void* problem) {
  const auto& of = *static_cast<const BwdKernelProblem*>(problem);
  const BwdProblem& p = of.problem;
  const bool group = p.features.group;
  // Any step from one sequence to the next will do: only the numbers of their tiles follow from these.
  const auto packing_of = [&](const Operands&, Packing* packing) {
    *packing = {!of.alike, group ? 0 : of.seqlen_q, group ? 0 : of.seqlen_k};
    return TILEKILN_OK;
  };
  const auto fill_operands = [&](const Operands&, const Packing& packing, AmpereParams* params) {
    fill_rows(p,
              {packing.step_q(group, of.steps.q, p.q_row), packing.step_k(group, of.steps.k, p.k_row),
               packing.step_k(group, of.steps.v, p.v_row)},
              params);
    return TILEKILN_OK;
  };
  return launch_stage<AmpereParams>(
      site, of, "fmha_bwd_ampere", [](AmpereParams* params) { return &params->common; }, packing_of, fill_operands);
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_bwd

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        ampere) = {tilekiln::cuda::fmha_bwd::launch_ampere};
