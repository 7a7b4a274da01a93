// SPDX-License-Identifier: MIT
// The hopper engine of fmha_bwd's three stages: tensor maps of what the main kernel copies.
#include "kernels/attention/fmha_bwd/dq_dk_dv/cuda/launch.h"

namespace tilekiln::cuda::fmha_bwd {
namespace {

tilekiln_status fill_maps(const BwdKernelProblem& of, const Operands& a, bool packed, int device, Params* params) {
  const int dtype = of.problem.features.dtype == Dtype::fp16 ? TILEKILN_FP16 : TILEKILN_BF16;
  const void* const other = of.problem.q != nullptr ? of.problem.q : of.problem.k;
  TILEKILN_TRY(encode_operand(a.q, packed, dtype, of.batch, other, device, &params->q));
  TILEKILN_TRY(encode_operand(a.dout, packed, dtype, of.batch, other, device, &params->dout));
  TILEKILN_TRY(encode_operand(a.k, packed, dtype, of.batch, other, device, &params->k));
  return encode_operand(a.v, packed, dtype, of.batch, other, device, &params->v);
}

tilekiln_status launch_hopper(const Site& site, const void* problem) {
  const auto& of = *static_cast<const BwdKernelProblem*>(problem);
  const auto packing_of = [&](const Operands& a, Packing* packing) {
    return find_packing(!of.alike, of.problem.features.group, of.batch, a.q, &a.dout, a.k, a.v, packing);
  };
  const auto fill_operands = [&](const Operands& a, const Packing& packing, Params* params) {
    return fill_maps(of, a, packing.packed, site.device.id, params);
  };
  return launch_stage<Params>(
      site, of, "fmha_bwd_hopper", [](Params* params) { return params; }, packing_of, fill_operands);
}

}  // namespace
}  // namespace tilekiln::cuda::fmha_bwd

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        hopper) = {tilekiln::cuda::fmha_bwd::launch_hopper};
