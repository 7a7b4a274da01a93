// SPDX-License-Identifier: MIT
// The tiles engine of matrix products: a checked call becomes one launch of the kernel whose tile the instance names.
#include "kernels/gemm/gemm/cuda/tiles.h"

#include "kernels/gemm/gemm/cuda/hopper.h"
#include "kernels/generated/gemm.h"

namespace tilekiln::cuda::gemm {
namespace {

// The form of an instance, and what the kernel with it says of itself, for a launch of that form alone.
struct Named {
  const Kernel* kernel;
  const Form* form;
  Build build;
};

Named find_named(const Site& site, const Problem& p) {
  namespace at = tilekiln::gemm::fields;
  const uint32_t* const how = site.choice->how->fields;
  constexpr uint32_t depth = 32;  // words of a stage that is not deep
  const auto named = [&](const Form& form) {
    return how[at::tile_m] == static_cast<unsigned>(form.rows()) &&
           how[at::tile_n] == static_cast<unsigned>(form.columns) &&
           how[at::tile_k] == depth * static_cast<unsigned>(form.deep) &&
           how[at::buffers] == static_cast<unsigned>(form.buffers) &&
           how[at::scheduler] == static_cast<unsigned>(form.turns);
  };
  for (const Form& form : kForms) {
    const Kernel* const kernel = named(form) ? find_kernel(p) : nullptr;
    if (kernel != nullptr) return {kernel, &form, build_of(*kernel)};
  }
  const Kernel* const kernel = find_kernel(p, false, true);
  for (const Form& form : kTiles) {
    if (kernel == nullptr || !named(form)) continue;
    Build build = build_of(*kernel);
    build.steps *= form.deep;
    build.threads = 128 * (1 + form.consumers);
    build.shared_bytes = tile_shared_bytes(form);
    return {kernel, &form, build};
  }
  return {};
}

Tiles tiles_of_form(const Problem& p, const Form& form, const Build& build) {
  const int rows = form.rows();
  const i64 bytes = bytes_of(p.dtype) * build.steps * (std::min<i64>(p.m, rows) + form.columns);
  const double compute_ns = column_ns * form.columns * rows / 128 * form.deep * form.together;
  return {form.function,
          rows,
          form.columns,
          std::max(ring_ns / form.stages, compute_ns),
          bytes,
          one_l2 / form.together,
          all_l2,
          parts_l2,
          static_cast<int>(std::min<i64>(divide_up(p.m, 16) * 16, rows)),
          1,
          form.columns / form.ctas,
          true,
          1};
}

tilekiln_status launch_tiles(const Site& site, const void* problem) {
  const auto& of = *static_cast<const Batch*>(problem);
  const Problem& p = of.first;
  const Named named = find_named(site, p);
  if (named.form == nullptr)
    return fail(TILEKILN_INTERNAL, "the library has a tile of matrix products for cuda without its kernel");
  const Tiles form = tiles_of_form(p, *named.form, named.build);
  const Operand a = operand_a(of, named.build, form), b = operand_b(of, named.build, form);
  // The tiles of every product gather what TMA cannot follow, and few rows alone are normalised; without numbers to add
  // nothing is multiplied.
  if (p.more.norm != nullptr || p.more.up != nullptr || p.m == 0 || p.n == 0 || p.k == 0 || !a.as_built ||
      !b.as_built || !can_copy(a) || !can_copy(b))
    return launch_hopper(site, problem);
  const i64 workers = facts(site.device.id)->multiprocessors * named.form->together;
  const i64 all = tiles_of(of, form);
  const Shares shares = shares_steps(*named.form) ? share(form, all, divide_up(p.k, named.build.steps), workers, 0)
                                                  : Shares{std::min(all, workers), all, 0};
  Params params = {};
  TILEKILN_TRY(fill_params(of, named.build, form, &params));
  TILEKILN_TRY(place(a, site.device.id, kGatherA, &params.a, &params.from_a, &params));
  TILEKILN_TRY(place(b, site.device.id, kGatherB, &params.b, &params.from_b, &params));
  return launch_shared(site, named.kernel, named.build, form, shares, &params);
}

}  // namespace
}  // namespace tilekiln::cuda::gemm

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET, tiles) = {tilekiln::cuda::gemm::launch_tiles};
