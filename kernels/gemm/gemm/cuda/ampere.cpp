// The ampere engine of matrix products: a checked call becomes the row of one launch.
#include "kernels/gemm/gemm/cuda/launch.h"

namespace tilekiln::cuda::gemm {
namespace {

// Two blocks of four warps share a processor. Of an A100: 312 TFLOP/s over 216 blocks.
constexpr int together = 2;
constexpr Tiles tiles = {"gemm_ampere", 128, 128, 730, 0, 1, 1, 2000, 128};

tilekiln_status launch_ampere(const Site& site, const void* problem) {
  const auto& of = *static_cast<const Batch*>(problem);
  const Problem& p = of.first;
  if (p.m == 0 || p.n == 0 || of.count == 0) return TILEKILN_OK;
  const Kernel* const kernel = find_kernel(p);
  if (kernel == nullptr) return fail_kernel();
  const Build& build = build_of(*kernel);
  Row row = {};
  TILEKILN_TRY(fill_row(of, build, tiles, &row));
  if (p.k > 0) {
    const Operand a = operand_a(of, build, tiles), b = operand_b(of, build, tiles);
    if (!a.as_built || !can_copy(a)) row.features |= kGatherA;
    if (!b.as_built || !can_copy(b)) row.features |= kGatherB;
    row.from_a = gathered(a);
    row.from_b = gathered(b);
    row.a_batches = a.batches() > 1 ? 1 : 0;
    row.b_batches = b.batches() > 1 ? 1 : 0;
  }
  Shares shares = share(tiles, row.tiles, row.steps, together * facts(site.device.id)->multiprocessors, 0);
  if (shares.whole == row.tiles) shares.grid = row.tiles;  // as processors are free
  return launch_shared(site, kernel, tiles, shares, &row);
}

}  // namespace
}  // namespace tilekiln::cuda::gemm

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        ampere) = {tilekiln::cuda::gemm::launch_ampere};
