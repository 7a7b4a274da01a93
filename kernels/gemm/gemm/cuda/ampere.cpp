// SPDX-License-Identifier: MIT
// The ampere engine of matrix products: a checked call becomes the parameters of one launch.
#include "kernels/gemm/gemm/cuda/launch.h"

namespace tilekiln::cuda::gemm {
namespace {

// Two blocks of four warps share a processor. Of an A100: 312 TFLOP/s over 216 blocks.
constexpr int together = 2;
constexpr Tiles tiles = {"gemm_ampere", 128, 128, 730, 0, 1, 1, 2000, 128, 1, 128, false, 1};

Tiles choose(const Batch& of, const Build& build, i64 blocks, Shares* shares) {
  const i64 all = tiles_of(of, tiles);
  *shares = share(tiles, all, divide_up(of.first.k, build.steps), blocks, 0);
  if (shares->whole == all) shares->grid = all;  // as processors are free
  return tiles;
}

tilekiln_status place(const Operand& of, int gather, Gathered* from, Params* params) {
  if (!of.as_built || !can_copy(of)) params->features |= gather;
  *from = gathered(of);
  return TILEKILN_OK;
}

tilekiln_status launch_ampere(const Site& site, const void* problem) {
  return launch_product(
      site, problem,
      [&](const Batch& of, const Build& build, Shares* shares) {
        return choose(of, build, together * facts(site.device.id)->multiprocessors, shares);
      },
      [](const Operand& of, int gather, TensorMap*, Gathered* from, Params* params) {
        return place(of, gather, from, params);
      });
}

}  // namespace
}  // namespace tilekiln::cuda::gemm

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        ampere) = {tilekiln::cuda::gemm::launch_ampere};
