// SPDX-License-Identifier: MIT
// The engine of grouped products on Hopper: a checked call becomes the parameters of one launch.
#include "kernels/gemm/gemm/cuda/maps.h"
#include "kernels/gemm/grouped_gemm/cuda/params.h"

namespace tilekiln::cuda::gemm {
namespace {

// The operands of all groups: TMA follows both, or their places are told.
tilekiln_status place_operands(const Batch& of, const Build& build, const Tiles& form, int device, Params* params) {
  Operand a = operand_a(of, build, form), b = operand_b(of, build, form);
  a.rows = static_cast<uint32_t>(form.rows / 2);  // of two CTAs each copies half
  TILEKILN_TRY(place(a, device, kGatherA, &params->a, &params->from_a, params));
  TILEKILN_TRY(place(b, device, kGatherB, &params->b, &params->from_b, params));
  params->b_batches = b.batches() > 1 ? 1 : 0;
  return TILEKILN_OK;
}

tilekiln_status launch_groups(const Site& site, const void* problem) {
  const auto& of = *static_cast<const matrix::DeviceGroups*>(problem);
  const Problem& p = of.first;
  if (p.m == 0 || p.n == 0 || of.groups == 0) return TILEKILN_OK;
  const Kernel* const kernel = find_kernel(p, true);
  if (kernel == nullptr)
    return fail(TILEKILN_INTERNAL, "the library has a grouped product for cuda without its kernel");
  const Build& build = build_of(*kernel);
  const Batch all = {p, of.groups, 0, of.b_step, 0, 0};
  const i64 across = divide_up(p.n, build.columns), most = (divide_up(p.m, build.rows) + of.groups) * across;
  if (most > INT32_MAX / 2)
    return fail_argument("out", "had %lld tiles of %d x %d or more, must have fewer than 2^30 on cuda", most,
                         build.rows, build.columns);
  const int pairs = across > 1 ? 1 : 0;
  const Tiles form = {"gemm_groups", build.rows, build.columns, 0, 0, 0, 0, 0, 0, 1, build.columns, true, 1};
  GroupParams params = {};
  Params& product = params.product;
  fill_epilogue(all, &product);
  product.m = p.m, product.n = p.n, product.k = p.k;
  product.grid.steps = static_cast<int>(divide_up(p.k, build.steps));
  if (p.k > 0) TILEKILN_TRY(place_operands(all, build, form, site.device.id, &product));
  product.grid.pairs = product.features & (kGatherA | kGatherB) ? 0 : pairs;
  params.starts = of.starts, params.counts = of.counts;
  params.factors_step = of.factors_step;
  params.groups = static_cast<int>(of.groups);
  params.bias_step = of.bias_step / static_cast<i64>(sizeof(float));
  if (p.bias != nullptr && params.bias_step % 2 != 0) product.features &= ~kAligned;  // pairs of it are read at once
  if (p.column_scale != nullptr && of.factors_step % 2 != 0) product.features &= ~kAligned;
  const int ctas = 1 + product.grid.pairs;
  const i64 workers = facts(site.device.id)->multiprocessors / ctas;
  return launch(site, {kernel,
                       form.function,
                       {static_cast<unsigned>(std::min(most, workers) * ctas), 1, 1},
                       static_cast<unsigned>(build.threads),
                       static_cast<unsigned>(build.shared_bytes),
                       &params,
                       false,
                       true,
                       static_cast<unsigned>(ctas)});
}

}  // namespace
}  // namespace tilekiln::cuda::gemm

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET,
                                                        groups) = {tilekiln::cuda::gemm::launch_groups};
