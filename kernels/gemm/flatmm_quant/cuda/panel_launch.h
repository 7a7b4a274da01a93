// SPDX-License-Identifier: MIT
// A product of rows with panels (panels.h) as one launch: host text of flatmm and flatmm_quant.
#pragma once
#include <algorithm>

#include "kernels/backends/cuda/held.h"
#include "kernels/gemm/flatmm_quant/cuda/panel_params.h"
#include "kernels/gemm/flatmm_quant/cuda/params.h"
#include "kernels/gemm/gemm/cuda/params.h"

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

// Refuses rows that TMA does not follow; `size`: bytes of an element.
tilekiln_status check_rows(const matrix::Problem& p, int size) {
  const i64 row_bytes = p.lda * size;
  if (at_16(p.a) && (p.m <= 1 || (row_bytes % 16 == 0 && row_bytes > 0))) return TILEKILN_OK;
  return fail_argument("a",
                       "rows began at %p and were %lld bytes apart, must be at multiples of 16 bytes on cuda: fill "
                       "them up to multiples of %d elements",
                       p.a, row_bytes, 16 / size);
}
tilekiln_status check_begins(const char* name, const void* data) {
  if (at_16(data)) return TILEKILN_OK;
  return fail_argument(name, "began at %p, must begin at a multiple of 16 bytes on cuda", data);
}

// Parts of k of few rows for all processors: the CTAs of a cluster. Those of three or four cannot have all at once.
int splits_of(const PanelProduct& to, i64 items, i64 workers) {
  constexpr int least_steps = 4;
  const auto turns = [&](i64 splits) {
    return (items * splits + workers - 1) / workers * ((to.steps + splits - 1) / splits);
  };
  int best = 1;
  for (int splits = 2; splits <= 4; ++splits)
    if (splits * least_steps <= to.steps && items * splits <= workers * (10 - splits) / 8 &&
        turns(splits) < turns(best))
      best = splits;
  return best;
}

// Launches a kernel whose words hold `word` numbers along k; `narrow`: rows are int8.
tilekiln_status launch_panels(const Site& site, const Kernel* kernel, const matrix::Grouped& g, int word, bool narrow,
                              bool fp16) {
  const matrix::Problem& p = g.product;
  PanelProduct to = {};
  to.b = static_cast<const uint8_t*>(p.b), to.factors = reinterpret_cast<const uint8_t*>(g.b_scale);
  to.bias = p.bias, to.row_scale = p.row_scale, to.row_scale_step = p.row_scale_step;
  to.a_scale = g.a_scale, to.a_scale_row = g.a_scale_row;
  to.c = p.c.data, to.c_row = p.c.row, to.beta = p.beta;
  to.out = p.out, to.out_row = p.out_row, to.rows = p.m, to.n = p.n, to.columns = p.n;
  to.k = p.k, to.words = (p.k + word - 1) / word, to.group = g.group;
  to.groups = (p.k + g.group - 1) / g.group, to.panels = p.n / matrix::kPanelLanes, to.across = (to.panels + 1) / 2;
  to.steps = (p.k + panels::kDepth - 1) / panels::kDepth;
  to.alpha = p.alpha, to.activation = static_cast<int>(p.activation), to.clamp_min = p.clamp_min,
  to.clamp_max = p.clamp_max;
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
  const i64 workers = i64{panels::kPanelForms[form].together} * facts(site.device.id)->multiprocessors;
  const i64 items = (p.m + panels::kTileRows - 1LL) / panels::kTileRows * to.across;
  if (items > INT32_MAX / 2)
    return fail_argument("out", "had %lld tiles of 128 x 128, must have fewer than 2^30 on cuda", items);
  to.splits = form < 2 ? splits_of(to, items, workers) : 1;
  const bool whole = (to.group % panels::kDepth == 0 || to.groups <= 1) && to.a_scale == nullptr;
  constexpr const char* functions[2][3] = {{"panels_16", "panels_64", "panels_128"},
                                           {"panels_16_whole", "panels_64_whole", "panels_128_whole"}};
  return launch(site, {kernel,
                       functions[whole ? 1 : 0][form],
                       {static_cast<unsigned>(std::min(items, workers) * to.splits), 1, 1},
                       panels::kPanelThreads,
                       static_cast<unsigned>(panels::panel_shared(form)),
                       &to,
                       false,
                       true,
                       static_cast<unsigned>(to.splits)});
}

}  // namespace
}  // namespace tilekiln::cuda::words
