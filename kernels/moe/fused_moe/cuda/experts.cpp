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
  Work(char* memory, const Experts& e, int all_experts)
      : rows(i64{e.tokens} * e.topk),
        tiles(e.experts == 0 ? 0 : std::min<i64>(e.experts, rows) + rows / kTileRows),
        parts(static_cast<int>(std::clamp<i64>(std::min(rows / 32, most_counts / std::max(all_experts, 1)), 1, 32))),
        size(e.fp8 ? 1 : 2),
        x_row(divide_up(e.hidden, 8) * 8),
        h_row(divide_up(e.inter, 8) * 8),
        sums_row(divide_up(e.hidden, 8) * 8),
        of{memory} {
    const i64 all = i64{parts} * all_experts;
    counts = of.take<int>(all > moe::kSharedCounts ? all : 0);
    places = of.take<int>(rows), row_tokens = of.take<int>(rows);
    row_tiles = of.take<moe::RowTile>(tiles), tile_count = of.take<int>(1);
    x = of.take<char>(rows * x_row * size), h = of.take<char>(rows * h_row * size);
    sums = of.take<float>(rows * sums_row);
    x_scale = of.take<float>(e.fp8 ? rows * (e.hidden / matrix::kBlock) : 0);
    h_scale = of.take<float>(e.fp8 ? rows * (e.inter / matrix::kBlock) : 0);
    if (all <= moe::kSharedCounts) counts = nullptr;
  }
  static constexpr i64 most_counts = 1 << 24;
  i64 rows, tiles;
  int parts;
  i64 size;  // of an element of x and h
  i64 x_row, h_row, sums_row;
  Parts of;
  int *counts, *places, *row_tokens, *tile_count;
  moe::RowTile* row_tiles;
  char *x, *h;
  float *sums, *x_scale, *h_scale;
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

tilekiln_status launch_experts(const Site& site, const void* problem) {
  const auto& e = *static_cast<const Experts*>(problem);
  if (e.tokens == 0 || e.hidden == 0) return TILEKILN_OK;
  Problem like = e.gate.product;
  if (e.fp8) like.out_dtype = static_cast<OutDtype>(e.dtype), like.blocks.a = e.topk_weights;  // whatever is not null
  const Kernel* const kernel = find_kernel(like, true);
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has fused_moe for cuda without its kernel");
  if (i64{e.tokens} * e.topk > INT32_MAX)
    return fail_argument("topk_ids", "had %lld choices of experts, must have fewer than 2^31 on cuda",
                         static_cast<long long>(i64{e.tokens} * e.topk));
  const int all = e.expert_mask != nullptr ? e.all_experts : e.experts;
  LaunchMemory memory;
  TILEKILN_TRY(memory.take(site, static_cast<size_t>(Work(nullptr, e, all).of.bytes), 0));
  const Work work(static_cast<char*>(memory.data()), e, all);
  constexpr i64 few = 1 << 15;  // elements that one block gathers as fast as another launch would
  const bool gathers = work.rows * work.x_row <= few;
  moe::Lists lists = {
      e.topk_ids,     e.expert_mask, e.local_tokens, e.ids_row,   e.tokens,        e.topk,         all,
      e.experts,      work.parts,    work.counts,    work.places, work.row_tokens, work.row_tiles, work.tile_count,
      gathers ? 1 : 0};
  lists.gather = {
      e.x,       work.x,   work.row_tokens, work.row_tiles, work.tile_count, e.x_row, work.x_row * work.size,
      work.rows, e.hidden, work.x_scale};
  const auto threads = static_cast<unsigned>(32 * std::max(work.parts, 8));
  TILEKILN_TRY(launch(site, {kernel, "moe_lists", {1, 1, 1}, threads, sizeof(moe::ListMemory), &lists, false, false}));
  if (!gathers && work.tiles > 0) {
    constexpr i64 blocks = 8;  // a processor's
    const auto grid = static_cast<unsigned>(std::min(work.rows, blocks * facts(site.device.id)->multiprocessors));
    TILEKILN_TRY(launch(site, {kernel, "moe_gather", {grid, 1, 1}, moe::kSumThreads, 0, &lists.gather, false, true}));
  }
  if (work.tiles > 0) TILEKILN_TRY(launch_products(site, kernel, work, e));
  const moe::Sums sums = {work.sums,     e.topk_weights, work.places, e.local_tokens, e.out,   work.sums_row,
                          e.weights_row, e.out_row / 2,  e.tokens,    e.topk,         e.hidden};
  const auto across = static_cast<unsigned>(divide_up(e.hidden, moe::kSumThreads * moe::kSumColumns));
  return launch(
      site,
      {kernel, "moe_sums", {static_cast<unsigned>(e.tokens), across, 1}, moe::kSumThreads, 0, &sums, false, true});
}

}  // namespace
}  // namespace tilekiln::cuda::gemm

extern "C" const tilekiln::cuda::Engine TILEKILN_EXPERTS_OF(TILEKILN_TARGET) = {tilekiln::cuda::gemm::launch_experts};
