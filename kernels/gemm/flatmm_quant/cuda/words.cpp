// SPDX-License-Identifier: MIT
// The words engine of flatmm_quant: a checked call is the parameters of one launch. Compiled with
// -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#include <algorithm>
#include <cstdlib>

#include "kernels/backends/cuda/held.h"
#include "kernels/gemm/flatmm_quant/cuda/panel_params.h"
#include "kernels/gemm/flatmm_quant/cuda/params.h"
#include "kernels/gemm/gemm/cuda/params.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _flatmm_quant_words)

namespace tilekiln::cuda::words {
namespace {

using matrix::i64;

bool at_16(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

const Kernel* find(bool fp16, int panels, bool narrow) {
  return find_held([&](const Kernel& one) {
    const auto& build = *static_cast<const Build*>(one.build);
    return (build.fp16 != 0) == fp16 && build.panels == panels && (build.narrow != 0) == narrow;
  });
}

// Rows of 16 bits as int8, in memory that is taken for them; `g` is then of those.
tilekiln_status narrow_rows(const Site& site, const Kernel* kernel, LaunchMemory* memory, matrix::Grouped* g) {
  matrix::Problem& p = g->product;
  const i64 row = (p.k + 15) / 16 * 16, numbers = (p.m * row + 255) / 256 * 256;
  TILEKILN_TRY(memory->take(site, static_cast<size_t>(numbers + (p.m + 3LL) / 4 * 16), 0));
  auto* const to = static_cast<signed char*>(memory->data());
  auto* const scale = reinterpret_cast<float*>(to + numbers);
  const Narrow narrow = {p.a, nullptr, nullptr, nullptr, nullptr, to, scale, p.lda, 0, row, p.m, p.k, 0};
  const auto grid = static_cast<unsigned>(std::min(p.m, 8 * facts(site.device.id)->multiprocessors));
  p.a = to, p.lda = row, p.row_scale = scale, p.row_scale_step = 1;
  return launch(site, {kernel, "panels_narrow", {grid, 1, 1}, panels::kNarrowThreads, 0, &narrow, false, true});
}

// Parts of k of few rows, so that all processors have some: the CTAs of a cluster.
int splits_of(const PanelProduct& to, i64 items, i64 workers) {
  constexpr int least_steps = 4;
  const auto turns = [&](i64 splits) {
    return (items * splits + workers - 1) / workers * ((to.steps + splits - 1) / splits);
  };
  int best = 1;
  for (int splits = 2; splits <= 4; splits *= 2)
    if (splits * least_steps <= to.steps && items * splits <= workers && turns(splits) < turns(best)) best = splits;
  return best;
}

tilekiln_status launch_panels(const Site& site, const matrix::Grouped& of) {
  matrix::Grouped g = of;
  matrix::Problem& p = g.product;
  const bool bytes = g.a_dtype == matrix::Dtype::int8, narrow = bytes || g.quantise_a;
  const bool fp16 = g.a_dtype == matrix::Dtype::fp16 || p.out_dtype == matrix::OutDtype::fp16;
  const Kernel* const kernel = find(fp16, 1 + static_cast<int>(g.weights), narrow);
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has flatmm_quant for cuda without its kernel");
  LaunchMemory memory;
  if (g.quantise_a && p.k > 0) TILEKILN_TRY(narrow_rows(site, kernel, &memory, &g));
  PanelProduct to = {};
  to.b = static_cast<const uint8_t*>(p.b), to.factors = reinterpret_cast<const uint8_t*>(g.b_scale);
  to.bias = p.bias, to.row_scale = p.row_scale, to.row_scale_step = p.row_scale_step;
  to.a_scale = g.a_scale, to.a_scale_row = g.a_scale_row;
  to.c = p.c.data, to.c_row = p.c.row, to.beta = p.beta;
  to.out = p.out, to.out_row = p.out_row, to.rows = p.m, to.n = p.n, to.columns = p.n;
  to.k = p.k, to.words = p.k / (g.weights == matrix::Weights::int8 ? 4 : 8), to.group = g.group;
  to.groups = (p.k + g.group - 1) / g.group, to.panels = p.n / matrix::kPanelLanes, to.across = (to.panels + 1) / 2;
  to.steps = (p.k + panels::kDepth - 1) / panels::kDepth;
  to.activation = static_cast<int>(p.activation), to.clamp_min = p.clamp_min, to.clamp_max = p.clamp_max;
  const bool fp32 = p.out_dtype == matrix::OutDtype::fp32;
  const uintptr_t pair = fp32 ? 8 : 4;
  const bool wide = reinterpret_cast<uintptr_t>(p.out) % pair == 0 && p.out_row % 2 == 0;
  to.features = (fp32 ? gemm::kOutFp32 : 0) | (wide ? gemm::kWideOut : 0);
  const int form = p.m <= 16 ? 0 : p.m <= 64 ? 1 : 2;
  RowArray rows = {"a",
                   p.a,
                   narrow ? TILEKILN_FP8
                   : fp16 ? TILEKILN_FP16
                          : TILEKILN_BF16,
                   {1, 1, 1, 1, 1},
                   {16, 16, 16, 16}};
  rows.lengths[0] = static_cast<uint64_t>(p.k), rows.lengths[1] = static_cast<uint64_t>(p.m);
  if (p.m > 1) rows.strides[0] = static_cast<uint64_t>(p.lda * (narrow ? 1 : 2));
  if (p.k > 0)
    TILEKILN_TRY(encode(rows, static_cast<uint32_t>(panels::kPanelForms[form].tokens), site.device.id, &to.x));
  const i64 workers = facts(site.device.id)->multiprocessors;
  const i64 items = (p.m + panels::kTileRows - 1LL) / panels::kTileRows * to.across;
  if (items > INT32_MAX / 2)
    return fail_argument("out", "had %lld tiles of 128 x 128, must have fewer than 2^30 on cuda", items);
  to.splits = form < 2 ? splits_of(to, items, workers) : 1;
  const bool whole = (to.group % panels::kDepth == 0 || to.groups == 1) && to.a_scale == nullptr;
  constexpr const char* functions[2][3] = {{"panels_16", "panels_64", "panels_128"},
                                           {"panels_16_whole", "panels_64_whole", "panels_128_whole"}};
  constexpr unsigned threads = 384;
  return launch(site, {kernel,
                       functions[whole ? 1 : 0][form],
                       {static_cast<unsigned>(std::min(items, workers) * to.splits), 1, 1},
                       threads,
                       panels::kPanelShared,
                       &to,
                       false,
                       true,
                       static_cast<unsigned>(to.splits)});
}

tilekiln_status launch_words(const Site& site, const void* problem) {
  const auto& g = *static_cast<const matrix::Grouped*>(problem);
  const matrix::Problem& p = g.product;
  if (p.m == 0 || p.n == 0) return TILEKILN_OK;
  const bool fp16 = g.a_dtype == matrix::Dtype::fp16, bytes = g.a_dtype == matrix::Dtype::int8;
  const bool few = g.weights == matrix::Weights::int4 && !bytes && !g.quantise_a && p.m <= kRows && getenv("TK_NEW") == nullptr;
  const i64 row_bytes = p.lda * (bytes ? 1 : 2);
  if (!g.quantise_a && (!at_16(p.a) || (p.m > 1 && (row_bytes % 16 != 0 || row_bytes <= 0))))
    return fail_argument("a",
                         "rows began at %p and were %lld bytes apart, must be at multiples of 16 bytes on cuda: fill "
                         "them up to multiples of %d elements",
                         p.a, row_bytes, bytes ? 16 : 8);
  for (const auto& [name, data] : {std::pair{"b", p.b}, std::pair<const char*, const void*>{"b_scale", g.b_scale}})
    if (!at_16(data)) return fail_argument(name, "began at %p, must begin at a multiple of 16 bytes on cuda", data);
  if (!few) return launch_panels(site, g);
  const Kernel* const kernel = find(fp16, 0, false);
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has flatmm_quant for cuda without its kernel");
  const Words words = {g, p.n / matrix::kPanelLanes, p.k / 8, (p.k + g.group - 1) / g.group};
  const auto across = static_cast<unsigned>(p.n / kColumns), down = static_cast<unsigned>((p.m + kRows - 1) / kRows);
  if (down > 65535)
    return fail_argument("a", "had %d rows, must have at most 1048560 on cuda with weights of int4", p.m);
  const bool wide = across * down > static_cast<unsigned>(facts(site.device.id)->multiprocessors);
  const char* const functions[2][2] = {{"words_8_many", "words_16_many"}, {"words_8_few", "words_16_few"}};
  return launch(site, {kernel,
                       functions[wide ? 1 : 0][p.m <= 8 ? 0 : 1],
                       {across, down, 1},
                       static_cast<unsigned>(32 * (wide ? kFewWarps : kManyWarps)),
                       0,
                       &words,
                       false,
                       true});
}

}  // namespace
}  // namespace tilekiln::cuda::words

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::words::launch_words};
