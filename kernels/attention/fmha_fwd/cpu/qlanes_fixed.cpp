// SPDX-License-Identifier: MIT
// A kernel of the qlanes engine for one combination of features: forward() with every feature a constant. A generated unit includes
// this; it says TILEKILN_CODES, packed as the family's header packs them, and TILEKILN_KERNEL, the one symbol that leaves it.
#include "kernels/attention/fmha_fwd/cpu/tile.h"
#include "kernels/attention/fmha_fwd/features.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {
namespace {

// Hides the member of the same name.
struct FixedProblem : FwdProblem {
  static constexpr fmha::FwdFeatures features = fmha::features_of(fmha_fwd::unpack(TILEKILN_CODES));
};

constexpr auto tile_of(fmha::Dtype dtype) {
  constexpr fmha::Dtype fixed = FixedProblem::features.dtype;
  void (*tile)(const FwdProblem&, const FwdUnit&, void*) = nullptr;
  if (dtype != fixed) return tile;
  if constexpr (fixed == fmha::Dtype::fp32) tile = fp32_tile<float, float, FixedProblem>;
  if constexpr (fixed == fmha::Dtype::fp16) tile = fp32_tile<fp16, fp16, FixedProblem>;
  if constexpr (fixed == fmha::Dtype::bf16) tile = bf16_bf16_tile<FixedProblem>;
  if constexpr (fixed == fmha::Dtype::fp8bf16) tile = fp8_bf16_tile<FixedProblem>;
  if constexpr (fixed == fmha::Dtype::fp8fp32) tile = fp32_tile<fp8, float, FixedProblem>;
  return tile;
}

}  // namespace
}  // namespace tilekiln::cpu::inline TILEKILN_TARGET

extern "C" const tilekiln::fmha::FwdEngine TILEKILN_KERNEL = {
    {tilekiln::cpu::tile_of(tilekiln::fmha::Dtype::fp32), tilekiln::cpu::tile_of(tilekiln::fmha::Dtype::fp16),
     tilekiln::cpu::tile_of(tilekiln::fmha::Dtype::bf16), tilekiln::cpu::tile_of(tilekiln::fmha::Dtype::fp8bf16),
     tilekiln::cpu::tile_of(tilekiln::fmha::Dtype::fp8fp32)},
    sizeof(tilekiln::cpu::Scratch),
    tilekiln::cpu::kTileQ,
    tilekiln::cpu::kTileK};
