// SPDX-License-Identifier: MIT
// The words engine of flatmm_quant: a checked call is the parameters of one launch. Compiled with
// -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#include "kernels/gemm/flatmm_quant/cuda/panel_launch.h"

#define TILEKILN_JOIN(a, b, c) a##b##c
#define TILEKILN_ENGINE(target) TILEKILN_JOIN(tilekiln_, target, _flatmm_quant_words)

namespace tilekiln::cuda::words {
namespace {

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

tilekiln_status launch_many(const Site& site, const matrix::Grouped& of) {
  matrix::Grouped g = of;
  matrix::Problem& p = g.product;
  const bool bytes = g.a_dtype == matrix::Dtype::int8, narrow = bytes || g.quantise_a;
  const bool fp16 = g.a_dtype == matrix::Dtype::fp16 || p.out_dtype == matrix::OutDtype::fp16;
  const Kernel* const kernel = find(fp16, 1 + static_cast<int>(g.weights), narrow);
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has flatmm_quant for cuda without its kernel");
  LaunchMemory memory;
  if (g.quantise_a && p.k > 0) TILEKILN_TRY(narrow_rows(site, kernel, &memory, &g));
  return launch_panels(site, kernel, g, g.weights == matrix::Weights::int8 ? 4 : 8, narrow, fp16);
}

tilekiln_status launch_words(const Site& site, const void* problem) {
  const auto& g = *static_cast<const matrix::Grouped*>(problem);
  const matrix::Problem& p = g.product;
  if (p.m == 0 || p.n == 0) return TILEKILN_OK;
  const bool fp16 = g.a_dtype == matrix::Dtype::fp16, bytes = g.a_dtype == matrix::Dtype::int8;
  const bool few = g.weights == matrix::Weights::int4 && !bytes && !g.quantise_a && p.m <= kRows;
  if (p.k > 0) {
    if (!g.quantise_a) TILEKILN_TRY(check_rows(p, bytes ? 1 : 2));
    TILEKILN_TRY(check_begins("b", p.b));
    TILEKILN_TRY(check_begins("b_scale", g.b_scale));
  }
  if (!few) return launch_many(site, g);
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
