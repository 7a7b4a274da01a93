// SPDX-License-Identifier: MIT
// The words engine of flatmm_quant: a checked call is the parameters of one launch. Compiled with
// -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#include "kernels/gemm/flatmm_quant/cuda/panel_launch.h"
#include "kernels/gemm/lists.h"

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

Kind kind_of(matrix::Weights weights) {
  return weights == matrix::Weights::int4 ? Kind::int4 : weights == matrix::Weights::int8 ? Kind::int8 : Kind::fp8;
}

// Tells whether the kernel of up to 8 rows takes it, and fills what it reads.
bool fill_few(Kind kind, Words* to) {
  const matrix::Problem& p = to->of.product;
  const int depth = chunk_depth(kind), group = to->of.group;
  const bool one = to->groups == 1;  // of all of k
  const auto is_power = [](int x) { return (x & (x - 1)) == 0; };
  const bool known = one || (group % depth == 0 && is_power(group / depth)) || depth % group == 0;
  if (to->of.a_scale != nullptr || !known || !at_16(p.more.norm) || !at_16(p.more.up)) return false;
  to->gated = p.more.up != nullptr;
  to->factor_rows = one ? 1 : std::max(1, depth / group), to->group_mask = depth / 32 / to->factor_rows - 1;
  to->group_shift = 31;
  if (!one && group >= depth) {
    for (to->group_shift = 0; depth << to->group_shift < group;) ++to->group_shift;
  }
  for (to->rows = std::min(p.m, kFewRows); to->rows > 0; --to->rows) {
    if (few_shared_bytes(kind, to->factor_rows, to->rows, p.k) <= kMostShared) break;
  }
  return to->rows > 0 && (to->rows == p.m || (p.more.norm == nullptr && p.more.up == nullptr));
}

tilekiln_status launch_few(const Site& site, const Kernel* kernel, Kind kind, const Words& words) {
  const char* const functions[] = {"words_few_int4", "words_few_int8", "words_few_fp8"};
  const matrix::Problem& p = words.of.product;
  const int tiles = p.n / (words.gated ? kColumns / 2 : kColumns), workers = facts(site.device.id)->multiprocessors;
  const int down = (p.m + words.rows - 1) / words.rows;
  if (down > 65535)
    return fail_argument("a", "had %d rows, must have at most 65535 times %d on cuda with weights of bytes", p.m,
                         words.rows);
  // Two CTAs of a processor: one alone had .94 of the time for 28672 x 4096 of int4, and 1.17 of a step of 8 G (H200).
  const int blocks = std::min(tiles, 2 * workers);
  return launch(site, {kernel,
                       functions[static_cast<int>(kind)],
                       {static_cast<unsigned>(blocks), static_cast<unsigned>(down), 1},
                       32 * kWarps,
                       static_cast<unsigned>(few_shared_bytes(kind, words.factor_rows, words.rows, p.k)),
                       &words,
                       false,
                       true,
                       1,
                       static_cast<unsigned>(kMostShared)});
}

tilekiln_status launch_words(const Site& site, const void* problem) {
  const auto& g = *static_cast<const matrix::Grouped*>(problem);
  const matrix::Problem& p = g.product;
  if (p.m == 0 || p.n == 0) return TILEKILN_OK;
  const bool fp16 = g.a_dtype == matrix::Dtype::fp16, bytes = g.a_dtype == matrix::Dtype::int8;
  const bool int4 = g.weights == matrix::Weights::int4, as_they_are = !bytes && !g.quantise_a;
  const bool few = as_they_are && (int4 ? p.m <= kRows : g.weights != matrix::Weights::mxfp4);
  if (p.k > 0) {
    if (!g.quantise_a) TILEKILN_TRY(check_rows(p, bytes ? 1 : 2));
    TILEKILN_TRY(check_begins("b", p.b));
    TILEKILN_TRY(check_begins("b_scale", g.b_scale));
  }
  if (!few) {
    TILEKILN_TRY(matrix::refuse_more(p));
    return launch_many(site, g);
  }
  const Kernel* const kernel = find(fp16, 0, false);
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has flatmm_quant for cuda without its kernel");
  const Kind kind = kind_of(g.weights);
  Words words = {};
  words.of = g, words.panels = p.n / kPanel, words.words = p.k / per_word(kind),
  words.groups = (p.k + g.group - 1) / g.group;
  // Rows without room beside the ring read the weight again; three times take longer than 16 rows at once.
  if ((!int4 || p.m <= kFewRows) && fill_few(kind, &words) && (!int4 || p.m <= 2 * words.rows))
    return launch_few(site, kernel, kind, words);
  TILEKILN_TRY(matrix::refuse_more(p));
  if (!int4 && g.a_scale != nullptr)
    return fail_argument("a_scale",
                         "had a factor a row and group, must have one a row, or rows be int8, on cuda with weights of "
                         "bytes");
  if (!int4)
    return fail_argument("a",
                         "had rows of %d numbers and groups of %d, must have rows of at most 49152 and groups of 32, "
                         "64, 128, 256 and so on or whole rows on cuda with weights of bytes",
                         p.k, g.group);
  const auto across = static_cast<unsigned>(p.n / kColumns);
  const bool wide = across > static_cast<unsigned>(facts(site.device.id)->multiprocessors);
  return launch(site, {kernel,
                       wide ? "words_16_few" : "words_16_many",
                       {across, 1, 1},
                       static_cast<unsigned>(32 * (wide ? kFewWarps : kManyWarps)),
                       0,
                       &words,
                       false,
                       true});
}

}  // namespace
}  // namespace tilekiln::cuda::words

extern "C" const tilekiln::cuda::Engine TILEKILN_ENGINE(TILEKILN_TARGET) = {tilekiln::cuda::words::launch_words};
