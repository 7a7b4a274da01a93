// SPDX-License-Identifier: MIT
// Products on Hopper: a checked call becomes the parameters of one launch. Included once, by the file of a pipeline.
#pragma once
#include "kernels/gemm/gemm/cuda/maps.h"

namespace tilekiln::cuda::gemm {
namespace {

// Rates, bytes a ns: L2 to one processor and to all, parts of tiles, which leave L2 on their way, and memory. A
// processor multiplies 128 x 64 by a column in 2.77 ns. On an H200 the choice takes 1.006 of the best form's time (48
// shapes of up to 512 rows, geometric mean), at most 1.06.
constexpr double one_l2 = 90, all_l2 = 9300, parts_l2 = 2000, memory = 4200, column_ns = 2.77;
constexpr double split_ns(int splits) { return 1400 + 400 * splits; }  // that a cluster takes to add up its parts
constexpr double memory_ns = 5000;  // of parts and counters, which come between two launches
constexpr i64 least_split = 2;      // steps of a CTA of it
constexpr double ring_ns = 2080;    // at least: a CTA's way round its ring, whose stages are on the way together

// The tiles of the least estimated time.
Tiles choose(const Batch& of, const Build& build, i64 workers, Shares* shares) {
  const Problem& p = of.first;
  const i64 size = bytes_of(p.dtype);
  const auto deep = static_cast<double>(build.steps * size / 128);  // lines of a stage
  const double read = static_cast<double>(size * p.k) * (static_cast<double>(p.m) + p.n);
  const double least_ns = (read + 2.0 * p.m * p.n) * static_cast<double>(of.count) / memory;
  Tiles best = {};
  const auto consider = [&](const Form& form, int ctas, int splits) {
    const int rows = ctas * kTileRows;
    const i64 bytes = size * build.steps * (std::min<i64>(p.m, rows) + form.columns);
    const Tiles one = {p.fast_sums && form.columns == kFastColumns ? "gemm_hopper_fast" : form.function,
                       rows,
                       form.columns,
                       deep * std::max(ring_ns / form.stages, column_ns * form.columns),
                       bytes,
                       ctas * one_l2,
                       all_l2,
                       parts_l2,
                       static_cast<int>(std::min<i64>(divide_up(p.m, 16) * 16, rows)),  // of whole warps
                       ctas,
                       form.columns / form.ctas,
                       false,
                       splits,
                       rows == kTileRows && form.columns <= kHalvedColumns};
    const i64 all = tiles_of(of, one), steps = divide_up(p.k, build.steps);
    if (splits > 1) {
      const i64 room = splits == 4 ? workers * 3 / 4 : workers;  // as many clusters of four as are there at once
      if (all > divide_up(room, splits) || steps < least_split * splits) return;
      const double ns = std::max(least_ns, static_cast<double>(divide_up(steps, splits)) * one.stage_ns(all * splits)) +
                        split_ns(splits);
      if (ns <= shares->ns) best = one, *shares = {all, all, ns};  // narrow tiles where memory alone bounds all
      return;
    }
    Shares its = share(one, all, steps, workers / ctas, least_ns);
    if (its.whole < all) its.ns += memory_ns;
    // Full turns are preferred for products of bytes that memory alone bounds: one turn of as many CTAs as there are
    // asks for most at once: 16 and 128 rows take .89 of the time.
    const bool fuller = size == 1 && its.ns == shares->ns && its.ns <= least_ns && its.grid == its.whole &&
                        its.grid * ctas > shares->grid * best.ctas * best.splits;
    if (best.function == nullptr || its.ns < shares->ns || fuller) best = one, *shares = its;
  };
  for (const Form& form : kForms) {
    if (build.blocks != 0 && form.columns % matrix::kBlock != 0 && matrix::kBlock % form.columns != 0) continue;
    for (int ctas = form.ctas; ctas > 0; --ctas) {
      if (ctas == 1 || p.m > kTileRows) consider(form, ctas, 1);
    }
    for (int splits = 2; splits <= form.splits; splits *= 2) consider(form, 1, splits);
  }
  // Launches that leave room for a part of the next one's CTAs do not let it begin: where these lie then cost 86 of 132
  // CTAs a fifth of their speed (16 and 128 rows of 11008 x 4096), 32, 64 and 128 gained 2 us.
  const i64 all = shares->grid * best.ctas * best.splits;
  best.early = 2 * all <= workers || 4 * all > 3 * workers;
  return best;
}

// Tells whether the kernel of few rows takes a product: pieces of 16 bytes along k, and a has room beside the ring.
bool are_few(const Batch& of, const Kernel& kernel) {
  const Problem& p = of.first;
  const Build& build = build_of(kernel);
  const auto whole = [](const void* data, i64 between, int lines) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && (lines == 1 || (between >= 0 && between % 8 == 0));
  };
  return of.count == 1 && p.products == 0 && p.m <= kFewRows && !p.a_columns && p.b_columns && build.bytes == 0 &&
         build.lines_a == 0 && build.lines_b == 0 && build.groups == 0 && p.k >= kFewDepth && p.k % 8 == 0 &&
         whole(p.a, p.lda, p.m) && whole(p.b, p.ldb, p.n) && whole(p.more.norm, 0, 1) &&
         whole(p.more.up, p.more.ld_up, p.n) && few_shared_bytes(p.m, p.k) <= build.shared_bytes;
}

tilekiln_status launch_few(const Site& site, const Batch& of, const Kernel* kernel) {
  const Problem& p = of.first;
  Params params = {};
  fill_epilogue(of, &params);
  if (p.b_constant) params.features |= kConstantB;
  params.m = p.m, params.n = p.n, params.k = p.k;
  params.from_a = {static_cast<const uint16_t*>(p.a), 0, p.lda, 1};
  params.from_b = {static_cast<const uint16_t*>(p.b), 0, p.ldb, 1};
  if (p.more.up != nullptr) params.features |= kGated;
  params.from_up = {static_cast<const uint16_t*>(p.more.up), 0, p.more.ld_up, 1};
  if (p.more.rounds) params.features |= kNormRounds;
  params.norm = static_cast<const uint16_t*>(p.more.norm), params.norm_epsilon = p.more.epsilon;
  const i64 blocks = std::min<i64>(divide_up(p.n, kFewColumns), facts(site.device.id)->multiprocessors);
  return launch(site, {kernel,
                       "gemm_few_rows",
                       {static_cast<unsigned>(blocks), 1, 1},
                       32 * kFewWarps,
                       static_cast<unsigned>(few_shared_bytes(p.m, p.k)),
                       &params,
                       false,
                       true,
                       1,
                       static_cast<unsigned>(build_of(*kernel).shared_bytes)});
}

// Splits a and b of fp32 into parts of bf16 in `memory`: the product becomes that of their parts.
tilekiln_status split_operands(const Site& site, Problem* p, LaunchMemory* memory) {
  const Kernel* const kernel = find_kernel(*p);
  if (kernel == nullptr)
    return fail(TILEKILN_INTERNAL, "the library has products of parts for cuda without their kernel");
  const i64 whole = divide_up(p->k, kSplitWhole) * kSplitWhole, between = (p->products / 3 + 1) * whole;
  if (whole * p->products > INT32_MAX)
    return fail_argument("a", "had %d columns, must have at most %d where precision is bf16x%d", p->k,
                         INT32_MAX / p->products / kSplitWhole * kSplitWhole, p->products);
  TILEKILN_TRY(memory->take(site, static_cast<size_t>((i64(p->m) + p->n) * between * 2), 0));
  const auto split = [&](const void* data, i64 line, i64 step, int lines, uint16_t* to) {
    const SplitParams of = {
        static_cast<const float*>(data), line, step, to, lines, p->k, static_cast<int>(whole), p->products / 3 + 1};
    const auto down = static_cast<unsigned>(divide_up(lines, kSplitTile));
    const auto across = static_cast<unsigned>(std::min<i64>(whole / kSplitTile, UINT16_MAX));
    return launch(site, {kernel, "split_parts", {down, across, 1}, kSplitThreads, sizeof(SplitTile), &of, false, true});
  };
  uint16_t* const a = static_cast<uint16_t*>(memory->data());
  uint16_t* const b = a + p->m * between;
  TILEKILN_TRY(split(p->a, p->a_columns ? 1 : p->lda, p->a_columns ? p->lda : 1, p->m, a));
  TILEKILN_TRY(split(p->b, p->b_columns ? p->ldb : 1, p->b_columns ? 1 : p->ldb, p->n, b));
  p->a = a, p->b = b, p->a_columns = false, p->b_columns = true, p->lda = p->ldb = between;
  p->k = static_cast<int>(whole) * p->products;
  return TILEKILN_OK;
}

tilekiln_status launch_hopper(const Site& site, const void* problem) {
  const int device = site.device.id;
  Batch of = *static_cast<const Batch*>(problem);
  LaunchMemory parts;
  if (of.first.products != 0) {
    if (of.first.m > 0 && of.first.n > 0 && of.first.k > 0) TILEKILN_TRY(split_operands(site, &of.first, &parts));
    of.first.dtype = Dtype::bf16;
  }
  const Kernel* const kernel =
      of.first.m > 0 && of.first.n > 0 && of.first.m <= kFewRows ? find_kernel(of.first) : nullptr;
  if (kernel != nullptr && are_few(of, *kernel)) return launch_few(site, of, kernel);
  return launch_product(
      site, &of,
      [&](const Batch& of, const Build& build, Shares* shares) {
        return choose(of, build, facts(device)->multiprocessors, shares);
      },
      [&](const Operand& of, int gather, TensorMap* map, Gathered* from, Params* params) {
        return place(of, device, gather, map, from, params);
      });
}

}  // namespace
}  // namespace tilekiln::cuda::gemm
