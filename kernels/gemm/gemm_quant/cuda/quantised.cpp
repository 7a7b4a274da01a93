// SPDX-License-Identifier: MIT
// The quantised engine of gemm_quant on Hopper: a product to rows of fp32 in memory of the call, then what becomes of each row.
#include "kernels/gemm/gemm/cuda/hopper.h"
#include "kernels/gemm/gemm_quant/cuda/params.h"

namespace tilekiln::cuda::gemm {
namespace {

tilekiln_status launch_quantised(const Site& site, const void* problem) {
  const auto& of = *static_cast<const matrix::Quantised*>(problem);
  const Problem& p = of.product;
  if (p.m == 0) return TILEKILN_OK;
  const Kernel* const kernel = find_held([&](const Kernel& one) { return build_of(one).groups == kQuantises; });
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has gemm_quant for cuda without its kernel");
  LaunchMemory memory;
  if (p.n > 0) {
    const size_t bytes = static_cast<size_t>(p.m) * static_cast<size_t>(p.n) * sizeof(float);
    TILEKILN_TRY(memory.take(site, (bytes + 15) / 16 * 16, 0));
    Batch sums = {p, 1, 0, 0, 0, 0};
    sums.first.out = memory.data(), sums.first.out_row = p.n;
    sums.first.out_dtype = OutDtype::fp32, sums.first.out_factor = 1;
    TILEKILN_TRY(launch_hopper(site, &sums));
  }
  const QuantiseParams params = {static_cast<const float*>(memory.data()),
                                 p.out,
                                 p.out_row,
                                 of.scale,
                                 of.static_scale > 0 ? of.static_scale : 0,
                                 p.n,
                                 p.out_dtype == OutDtype::fp8 ? 1 : 0};
  return launch(site, {kernel,
                       "quantise_rows",
                       {static_cast<unsigned>(p.m), 1, 1},
                       static_cast<unsigned>(build_of(*kernel).threads),
                       0,
                       &params,
                       false,
                       true});
}

}  // namespace
}  // namespace tilekiln::cuda::gemm

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        quant_quantised) = {tilekiln::cuda::gemm::launch_quantised};
