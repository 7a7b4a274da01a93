// The ampere engine of matrix products: a checked call becomes the row of one launch, a block of threads a tile.
#include "kernels/gemm/gemm/cuda/launch.h"

namespace tilekiln::cuda::gemm {
namespace {

tilekiln_status launch_ampere(const Site& site, const void* problem) {
  const auto& of = *static_cast<const Batch*>(problem);
  const Problem& p = of.first;
  if (p.m == 0 || p.n == 0 || of.count == 0) return TILEKILN_OK;
  const Kernel* const kernel = find_kernel(p);
  if (kernel == nullptr) return fail_kernel();
  const Build& build = build_of(*kernel);
  Row row = {};
  TILEKILN_TRY(fill_row(of, build, &row));
  if (p.k > 0) {
    const Operand a = operand_a(of, build), b = operand_b(of, build);
    if (!a.as_built || !can_copy(a)) row.features |= kGatherA;
    if (!b.as_built || !can_copy(b)) row.features |= kGatherB;
    row.from_a = gathered(a);
    row.from_b = gathered(b);
    row.a_batches = a.batches() > 1 ? 1 : 0;
    row.b_batches = b.batches() > 1 ? 1 : 0;
  }
  return launch(site, {kernel,
                       "gemm_ampere",
                       {static_cast<unsigned>(row.tiles), 1, 1},
                       static_cast<unsigned>(build.threads),
                       static_cast<unsigned>(build.shared_bytes),
                       &row,
                       false});
}

}  // namespace
}  // namespace tilekiln::cuda::gemm

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        ampere) = {tilekiln::cuda::gemm::launch_ampere};
