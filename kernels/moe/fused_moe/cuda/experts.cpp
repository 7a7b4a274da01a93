// SPDX-License-Identifier: MIT
// The experts engine of fused_moe on Hopper: a checked call becomes four or five launches. Compiled with
// -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#include "kernels/moe/fused_moe/experts.h"
#include "kernels/gemm/gemm/cuda/maps.h"
#include "kernels/moe/fused_moe/cuda/params.h"

#define TILEKILN_EXPERTS(target) TILEKILN_JOIN(tilekiln_, target, _fused_moe_, experts)
#define TILEKILN_EXPERTS_OF(target) TILEKILN_EXPERTS(target)

namespace tilekiln::cuda::gemm {
namespace {

using tilekiln::moe::Experts;

// Parts of the memory of a call, each aligned to 256 bytes.
struct Parts {
  char* memory;
  i64 bytes = 0;
  template <class T> T* take(i64 count) {
    T* const part = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + bytes);
    bytes += divide_up(count * static_cast<i64>(sizeof(T)), 256) * 256;
    return part;
  }
};

// Sizes of a call, and its memory.
struct Work {
  Work(char* memory, const Experts& e, int all_experts, int splits = 1)
      : rows(i64{e.tokens} * e.topk),
        tiles(e.experts == 0 ? 0 : std::min<i64>(e.experts, rows) + rows / kTileRows),
        parts(static_cast<int>(std::clamp<i64>(std::min(rows / 32, most_counts / std::max(all_experts, 1)), 1, 32))),
        size(e.fp8 || e.int8_rows ? 1 : 2),
        x_row(divide_up(e.hidden, 16) * 16),
        h_row(divide_up(e.inter, 16) * 16),
        sums_row(divide_up(e.hidden, 8) * 8),
        of{memory} {
    const i64 all = i64{parts} * all_experts;
    counts = of.take<int>(all > moe::kSharedCounts ? all : 0);
    places = of.take<int>(rows), row_tokens = of.take<int>(rows);
    row_tiles = of.take<RowTile>(tiles), tile_count = of.take<int>(1);
    x = of.take<char>(rows * x_row * size), h = of.take<char>(rows * h_row * size);
    sums = of.take<float>(rows * sums_row * splits);
    x_scale = of.take<float>(e.fp8 ? rows * (e.hidden / matrix::kBlock) : e.int8_rows ? rows : 0);
    h_scale = of.take<float>(e.fp8 ? rows * (e.inter / matrix::kBlock) : e.int8_rows ? rows : 0);
    wide_h = of.take<float>(e.int8_rows ? rows * h_row : 0);
    if (all <= moe::kSharedCounts) counts = nullptr;
  }
  static constexpr i64 most_counts = 1 << 24;
  i64 rows, tiles;
  int parts;
  i64 size;  // of an element of x and h
  i64 x_row, h_row, sums_row;
  Parts of;
  int *counts, *places, *row_tokens, *tile_count;
  RowTile* row_tiles;
  char *x, *h;
  float *sums, *x_scale, *h_scale, *wide_h;  // wide_h: before its rows become int8
};

tilekiln_status refuse_rows(const char* name, const void* data, i64 row_bytes, i64 step_bytes) {
  return fail_argument(name,
                       "rows began at %p, were %lld bytes apart and experts %lld, must be at multiples of 16 bytes, "
                       "none of them below 0, on cuda: fill rows up to multiples of 8 elements",
                       data, row_bytes, step_bytes);
}

bool at_16(const void* data, i64 row_bytes, i64 step_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0 && step_bytes % 16 == 0;
}

// One product of all rows, by tiles of `form`; b has `lines` columns of an expert, those of gate and up together.
struct Product {
  const char *name, *functions[2];  // by form, null: without
  const Problem* p;
  i64 lines, b_step, bias_step;
};

tilekiln_status launch_rows(const Site& site, const Kernel* kernel, const Work& work, const Product& one, i64 experts,
                            bool gated, moe::Rows* rows) {
  const Build& build = build_of(*kernel);
  Params& product = rows->of.product;
  const Problem& p = *one.p;
  const int device = site.device.id;
  const i64 workers = facts(device)->multiprocessors;
  const auto across = [&](const moe::Form& form) { return divide_up(p.n, gated ? form.columns / 2 : form.columns); };
  // Narrow tiles where wide ones are fewer than processors. Narrower ones yet, of 64 columns, took a token of Mixtral
  // 276 us for 249 (H200).
  const int chosen = one.functions[1] != nullptr && work.tiles * across(moe::kForms[0]) < workers ? 1 : 0;
  const moe::Form& form = moe::kForms[chosen];
  const i64 most = work.tiles * across(form);
  if (most > INT32_MAX / 2)
    return fail_argument(one.name, "had %lld tiles of %d x %d or more, must have fewer than 2^30 on cuda", most,
                         build.rows, form.columns);
  product.m = static_cast<int>(work.rows), product.n = p.n, product.k = p.k;
  product.grid.steps = static_cast<int>(divide_up(p.k, build.steps));
  product.grid.pairs = across(form) > 1 ? 1 : 0;
  if (p.k > 0) {
    if (p.b_columns != (build.lines_b == 0))
      return fail_argument(one.name, "had fewer than 8 rows or columns an expert, must have 8 or more on cuda");
    const i64 b_step = experts > 1 ? one.b_step : 0;
    const i64 row_bytes = p.ldb * work.size;
    if (!at_16(p.b, row_bytes, b_step) || p.ldb <= 0 || b_step < 0)
      return refuse_rows(one.name, p.b, row_bytes, b_step);
    const uint32_t half = static_cast<uint32_t>(form.columns / 2);
    const Operand b = {one.name,  p.b,     !p.b_columns,
                       one.lines, p.k,     p.ldb,
                       b_step,    experts, p.b_columns ? half : static_cast<uint32_t>(build.steps),
                       true,      p.dtype};
    TILEKILN_TRY(encode_operand(b, work.rows <= experts, device, &product.b));
    product.b_batches = b.batches() > 1 ? 1 : 0;
    const Operand a = {"x", p.a, false, work.rows, p.k, p.lda, 0, 1, kTileRows / 2, true, p.dtype};
    TILEKILN_TRY(encode_operand(a, false, device, &product.a));
  }
  rows->of.bias_step = one.bias_step;
  if (p.bias != nullptr && one.bias_step % 2 != 0) product.features &= ~kAligned;  // pairs of it are read at once
  rows->tiles = work.row_tiles, rows->tile_count = work.tile_count;
  const int ctas = 1 + product.grid.pairs;
  return launch(site, {kernel,
                       one.functions[chosen],
                       {static_cast<unsigned>(std::min(most, workers / ctas) * ctas), 1, 1},
                       static_cast<unsigned>(build.threads),
                       static_cast<unsigned>(build.shared_bytes),
                       rows,
                       false,
                       true,
                       static_cast<unsigned>(ctas)});
}

// x goes through gate and up to h, h through down to sums.
tilekiln_status launch_products(const Site& site, const Kernel* kernel, const Work& work, const Experts& e) {
  Problem gate = e.gate.product, down = e.down.product;
  gate.bias = e.gate_bias, down.bias = e.down_bias;
  gate.a = work.x, gate.lda = work.x_row;
  gate.out = work.h, gate.out_row = work.h_row;
  down.a = work.h, down.lda = work.h_row;
  down.out = work.sums, down.out_row = work.sums_row;
  if (e.fp8) gate.blocks.a = work.x_scale, down.blocks.a = work.h_scale;
  moe::Rows first = {};
  fill_epilogue({gate, 1, 0, 0, 0, 0}, &first.of.product);
  first.slope = gate.slope, first.swiglu = e.swiglu ? 1 : 0;
  first.factors_step = e.gate_scale_step / 4, first.scale = work.h_scale;
  constexpr Product of_one = {"", {"moe_rows_256", "moe_rows_128"}, nullptr, 0, 0, 0};
  constexpr Product of_both = {"", {"moe_gated_256", "moe_other"}, nullptr, 0, 0, 0};
  constexpr Product to_bytes[] = {{"", {"moe_other", nullptr}, nullptr, 0, 0, 0},
                                  {"", {"moe_gated_256", nullptr}, nullptr, 0, 0, 0}};
  Product up = e.fp8 ? to_bytes[e.gated] : e.gated ? of_both : of_one, last = of_one;
  up.name = "gate_up", up.p = &gate, up.lines = i64{gate.n} * (e.gated ? 2 : 1);
  up.b_step = e.gate_step, up.bias_step = e.gate_bias_row;
  last.name = "down", last.p = &down, last.lines = down.n;
  last.b_step = e.down_step, last.bias_step = e.down_bias_row;
  TILEKILN_TRY(launch_rows(site, kernel, work, up, e.experts, e.gated, &first));
  moe::Rows second = {};
  fill_epilogue({down, 1, 0, 0, 0, 0}, &second.of.product);
  second.factors_step = e.down_scale_step / 4;
  return launch_rows(site, kernel, work, last, e.experts, false, &second);
}

// Panels of quantised numbers.
const Kernel* find_panels(const Experts& e) {
  for (const Kernel* kernel : held) {
    if (kernel == nullptr) continue;
    const Build& build = build_of(*kernel);
    if (build.tiles == 1 + static_cast<int>(e.gate.weights) && (build.bytes != 0) == e.int8_rows &&
        (build.fp16 != 0) == (e.dtype == Dtype::fp16))
      return kernel;
  }
  return nullptr;
}

// A product of panels but for what is of a matrix: `columns` of them are of out.
struct Panels {
  const char* name;
  const matrix::Grouped* of;
  const void* x;
  i64 x_row, columns, step, scale_step, up, up_scale;  // the last four in bytes
  bool gated;
};

PanelProduct panel_product(const Panels& one) {
  const Problem& p = one.of->product;
  PanelProduct to = {};
  const int word = one.of->weights == matrix::Weights::int8 ? 4 : 8;
  to.b = static_cast<const uint8_t*>(p.b), to.factors = reinterpret_cast<const uint8_t*>(one.of->b_scale);
  to.b_step = one.step, to.up_offset = one.up, to.factors_step = one.scale_step, to.up_factors = one.up_scale;
  to.n = p.n, to.columns = static_cast<int>(one.columns), to.k = p.k, to.group = one.of->group;
  to.words = static_cast<int>(divide_up(p.k, word)), to.groups = static_cast<int>(divide_up(p.k, to.group));
  to.panels = p.n / matrix::kPanelLanes, to.across = static_cast<int>(divide_up(to.panels, one.gated ? 1 : 2));
  to.steps = static_cast<int>(divide_up(p.k, panels::kDepth)), to.splits = 1;
  to.activation = static_cast<int>(p.activation);
  to.alpha = 1, to.clamp_min = p.clamp_min, to.clamp_max = p.clamp_max, to.slope = p.slope;
  return to;
}

// Parts of k of the second product of few rows, so that all processors have some.
int splits_of(const Experts& e, i64 rows, i64 tiles, i64 workers) {
  constexpr i64 few = 512, most = 8, least_steps = 4;
  const i64 across = divide_up(e.down.product.n, 2 * matrix::kPanelLanes), steps = divide_up(e.inter, panels::kDepth);
  if (!e.quantised || rows > few || tiles == 0) return 1;
  const auto turns = [&](i64 splits) { return divide_up(tiles * across * splits, workers) * divide_up(steps, splits); };
  i64 best = 1;
  for (i64 splits = 2; splits <= most && splits * least_steps <= steps; ++splits)
    if (turns(splits) < turns(best)) best = splits;
  return static_cast<int>(best);
}

// Rows that are multiplied together: half of an expert's take nearly the time of all.
int form_of(const Work& work, const Experts& e) {
  constexpr i64 few = 16, some = 40;
  const i64 of_expert = divide_up(work.rows, std::min<i64>(work.rows, e.experts));
  return e.tokens <= few || of_expert <= few ? 0 : of_expert <= some ? 1 : 2;
}

tilekiln_status launch_panels(const Site& site, const Kernel* kernel, const Work& work, const Panels& one,
                              const Experts& e, PanelProduct* to) {
  const int device = site.device.id;
  const int form = form_of(work, e);
  const i64 workers = i64{panels::kPanelForms[form].together} * facts(device)->multiprocessors;
  const i64 items = work.tiles * to->across * to->splits;
  if (items == 0) return TILEKILN_OK;
  if (items > INT32_MAX / 2)
    return fail_argument(one.name, "had %lld tiles of 128 x 128 or more, must have fewer than 2^30 on cuda", items);
  if (!at_16(to->b, 0, to->b_step) || !at_16(to->factors, 0, to->factors_step))
    return fail_argument(one.name,
                         "panels began at %p, their factors at %p, experts lie %lld and %lld bytes apart, must be "
                         "multiples of 16 on cuda",
                         to->b, to->factors, static_cast<long long>(to->b_step),
                         static_cast<long long>(to->factors_step));
  const bool whole = to->group % panels::kDepth == 0 || to->groups == 1;
  constexpr const char* functions[2][2][3] = {
      {{"panels_rows_16", "panels_rows_64", "panels_rows_128"},
       {"panels_rows_16_whole", "panels_rows_64_whole", "panels_rows_128_whole"}},
      {{"panels_gated_16", "panels_gated_64", "panels_gated_128"},
       {"panels_gated_16_whole", "panels_gated_64_whole", "panels_gated_128_whole"}}};
  to->tiles = work.row_tiles, to->tile_count = work.tile_count;
  const Dtype dtype = e.int8_rows ? Dtype::int8 : e.dtype;
  const Operand a = {
      "x",  one.x, false, work.rows, to->k, one.x_row, 0, 1, static_cast<uint32_t>(panels::kPanelForms[form].tokens),
      true, dtype};
  if (to->k > 0) TILEKILN_TRY(encode_operand(a, false, device, &to->x));
  return launch(site, {kernel,
                       functions[one.gated ? 1 : 0][whole ? 1 : 0][form],
                       {static_cast<unsigned>(std::min(items, workers)), 1, 1},
                       static_cast<unsigned>(build_of(*kernel).threads),
                       static_cast<unsigned>(panels::panel_shared(form)),
                       to,
                       false,
                       true});
}

tilekiln_status launch_narrow(const Site& site, const Kernel* kernel, const Work& work, const Narrow& narrow) {
  constexpr i64 blocks = 8;  // a processor's
  const auto grid = static_cast<unsigned>(std::min(work.rows, blocks * facts(site.device.id)->multiprocessors));
  return launch(site, {kernel, "panels_narrow", {grid, 1, 1}, panels::kNarrowThreads, 0, &narrow, false, true});
}

// Products of panels, the first and the second: rows of int8 are made of x and of h before each.
tilekiln_status launch_both(const Site& site, const Kernel* kernel, const Work& work, const Experts& e, int splits) {
  const Panels gate = {"gate_up",   &e.gate,           work.x,      work.x_row, e.inter,
                       e.gate_step, e.gate_scale_step, e.up_offset, e.up_scale, e.gated};
  const Panels down = {"down", &e.down, work.h, work.h_row, e.hidden, e.down_step, e.down_scale_step, 0, 0, false};
  PanelProduct first = panel_product(gate), second = panel_product(down);
  first.bias = e.gate_bias, first.bias_step = e.gate_bias_row, first.swiglu = e.swiglu ? 1 : 0;
  first.out = work.h, first.out_row = work.h_row;
  if (e.int8_rows) first.row_scale = work.x_scale, second.row_scale = work.h_scale;
  first.row_scale_step = second.row_scale_step = 1;
  second.bias = e.down_bias, second.bias_step = e.down_bias_row;
  second.out = work.sums, second.out_row = work.sums_row, second.split_step = work.rows * work.sums_row;
  second.splits = splits;
  first.features = kWideOut, second.features = kWideOut | kOutFp32;
  Narrow narrow = {e.x,
                   work.row_tokens,
                   work.row_tiles,
                   work.tile_count,
                   e.smooth_scale,
                   reinterpret_cast<signed char*>(work.x),
                   work.x_scale,
                   e.x_row / 2,
                   e.smooth_row,
                   work.x_row,
                   work.rows,
                   e.hidden,
                   0};
  if (e.int8_rows) {
    first.out = work.wide_h, first.features |= kOutFp32;
    TILEKILN_TRY(launch_narrow(site, kernel, work, narrow));
  }
  TILEKILN_TRY(launch_panels(site, kernel, work, gate, e, &first));
  if (e.int8_rows) {
    narrow = {work.wide_h,
              nullptr,
              work.row_tiles,
              work.tile_count,
              e.down_smooth_scale,
              reinterpret_cast<signed char*>(work.h),
              work.h_scale,
              work.h_row,
              e.down_smooth_row,
              work.h_row,
              work.rows,
              e.inter,
              1};
    TILEKILN_TRY(launch_narrow(site, kernel, work, narrow));
  }
  return launch_panels(site, kernel, work, down, e, &second);
}

tilekiln_status launch_experts(const Site& site, const void* problem) {
  const auto& e = *static_cast<const Experts*>(problem);
  if (e.tokens == 0 || e.hidden == 0) return TILEKILN_OK;
  Problem like = e.gate.product;
  if (e.fp8) like.out_dtype = static_cast<OutDtype>(e.dtype), like.blocks.a = e.topk_weights;  // whatever is not null
  const Kernel* const kernel = e.quantised ? find_panels(e) : find_kernel(like, true);
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has fused_moe for cuda without its kernel");
  if (i64{e.tokens} * e.topk > INT32_MAX)
    return fail_argument("topk_ids", "had %lld choices of experts, must have fewer than 2^31 on cuda",
                         static_cast<long long>(i64{e.tokens} * e.topk));
  const int all = e.expert_mask != nullptr ? e.all_experts : e.experts;
  LaunchMemory memory;
  const Work sizes(nullptr, e, all);
  const int splits = splits_of(e, sizes.rows, sizes.tiles, facts(site.device.id)->multiprocessors);
  TILEKILN_TRY(memory.take(site, static_cast<size_t>(Work(nullptr, e, all, splits).of.bytes), 0));
  const Work work(static_cast<char*>(memory.data()), e, all, splits);
  constexpr i64 few = 1 << 15;  // elements that one block gathers as fast as another launch would
  const bool gathers = work.rows * work.x_row <= few && !e.int8_rows;
  moe::Lists lists = {
      e.topk_ids,     e.expert_mask, e.local_tokens, e.ids_row,   e.tokens,        e.topk,         all,
      e.experts,      work.parts,    work.counts,    work.places, work.row_tokens, work.row_tiles, work.tile_count,
      gathers ? 1 : 0};
  lists.gather = {
      e.x,       work.x,   work.row_tokens, work.row_tiles, work.tile_count, e.x_row, work.x_row * work.size,
      work.rows, e.hidden, work.x_scale};
  const auto threads = static_cast<unsigned>(32 * std::max(work.parts, 8));
  TILEKILN_TRY(launch(site, {kernel, "moe_lists", {1, 1, 1}, threads, sizeof(moe::ListMemory), &lists, false, false}));
  if (!gathers && !e.int8_rows && work.tiles > 0) {
    constexpr i64 blocks = 8;  // a processor's
    const auto grid = static_cast<unsigned>(std::min(work.rows, blocks * facts(site.device.id)->multiprocessors));
    TILEKILN_TRY(launch(site, {kernel, "moe_gather", {grid, 1, 1}, moe::kSumThreads, 0, &lists.gather, false, true}));
  }
  if (work.tiles > 0)
    TILEKILN_TRY(e.quantised ? launch_both(site, kernel, work, e, splits) : launch_products(site, kernel, work, e));
  const moe::Sums sums = {work.sums,      e.topk_weights, work.places,
                          e.local_tokens, e.out,          work.sums_row,
                          e.weights_row,  e.out_row / 2,  work.rows * work.sums_row,
                          e.tokens,       e.topk,         e.hidden,
                          splits};
  const auto across = static_cast<unsigned>(divide_up(e.hidden, moe::kSumThreads * moe::kSumColumns));
  return launch(
      site,
      {kernel, "moe_sums", {static_cast<unsigned>(e.tokens), across, 1}, moe::kSumThreads, 0, &sums, false, true});
}

}  // namespace
}  // namespace tilekiln::cuda::gemm

extern "C" const tilekiln::cuda::Engine TILEKILN_EXPERTS_OF(TILEKILN_TARGET) = {tilekiln::cuda::gemm::launch_experts};
