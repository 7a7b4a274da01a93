// SPDX-License-Identifier: MIT
// Parameters of the kernels from a checked product: what the pipelines have in common. Included once, by the file of a
// pipeline, which is compiled with -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS (held.h).
#pragma once
#include <algorithm>

#include "kernels/backends/cuda/held.h"
#include "kernels/gemm/gemm/cuda/params.h"
#include "kernels/gemm/gemm/cuda/shares.h"
#include "kernels/gemm/lists.h"

#define TILEKILN_JOIN(a, b, c, d) a##b##c##d
#define TILEKILN_ENGINE(target, pipeline) TILEKILN_JOIN(tilekiln_, target, _gemm_, pipeline)

namespace tilekiln::cuda::gemm {
namespace {

using matrix::Batch;
using matrix::Dtype;
using matrix::i64;
using matrix::OutDtype;
using matrix::Problem;

const Build& build_of(const Kernel& kernel) { return *static_cast<const Build*>(kernel.build); }

constexpr i64 bytes_of(Dtype dtype) {
  return dtype == Dtype::fp8 || dtype == Dtype::bf8 || dtype == Dtype::int8 ? 1 : 2;
}

// The kernel of the operands' layouts; without one, as of a matrix of one row, which is of both layouts, any: its
// loader gathers.
const Kernel* find_kernel(const Problem& p, bool groups = false, bool tiles = false) {
  const Kernel* other = nullptr;
  for (const Kernel* kernel : held) {
    if (kernel == nullptr) continue;
    const Build& build = build_of(*kernel);
    const bool bytes = bytes_of(p.dtype) == 1;
    if ((build.blocks != 0) != (p.blocks.a != nullptr) || (build.tiles != 0) != tiles) continue;
    if ((build.parts != 0) != (p.products != 0)) continue;
    if ((build.groups != 0) != groups || build.bytes != (bytes ? static_cast<int>(p.dtype) : 0)) continue;
    if ((build.fp16 != 0) != (bytes ? p.out_dtype == OutDtype::fp16 : p.dtype == Dtype::fp16)) continue;
    if ((build.lines_a != 0) == p.a_columns && (build.lines_b != 0) != p.b_columns) return kernel;
    other = kernel;
  }
  return other;
}

// a or b: `lines` rows of a or columns of b, `between` elements apart where they are contiguous along k, else
// the steps along k are. `batch_bytes` from one product's to the next.
struct Operand {
  const char* name;
  const void* data;
  bool along_lines;
  i64 lines, steps, between, batch_bytes, count;
  uint32_t rows;  // of a copy
  bool as_built;  // the build has it so
  Dtype dtype;

  [[nodiscard]] i64 batches() const { return batch_bytes == 0 ? 1 : count; }
  [[nodiscard]] i64 element_bytes() const { return bytes_of(dtype); }
};

// Strides of one row, and of one array, mean nothing.
bool can_copy(const Operand& of) {
  constexpr i64 most = i64(1) << 39;
  const auto sound = [](i64 bytes) { return bytes > 0 && bytes % 16 == 0 && bytes < most; };
  const i64 rows = of.along_lines ? of.steps : of.lines;
  return reinterpret_cast<uintptr_t>(of.data) % 16 == 0 &&
         (rows == 1 || (of.between < most && sound(of.between * of.element_bytes()))) &&
         (of.batches() == 1 || sound(of.batch_bytes));
}

void fill_extra(const matrix::Extra& from, i64 batch_bytes, i64 size, float factor, bool multiply, Params* params) {
  const Extra* const to = matrix::add_extra(from, batch_bytes, size, factor, multiply, params->extra);
  if (to == nullptr) return;
  const bool wide = from.column == 1 && from.row % 2 == 0 && to->batch % 2 == 0 &&
                    reinterpret_cast<uintptr_t>(from.data) % static_cast<uintptr_t>(2 * size) == 0;
  if (!wide) params->features &= ~kWideExtras;
}

void fill_epilogue(const Batch& of, Params* params) {
  const Problem& p = of.first;
  const bool sums = p.out_dtype == OutDtype::int32, fp32 = sums || p.out_dtype == OutDtype::fp32;
  const i64 size = fp32 ? 4 : 2, wide = 16 / size;  // elements of 16 bytes
  params->features |= kWideExtras | (fp32 ? kOutFp32 : 0) | (sums ? kOutSums : 0) | (p.bias_of_rows ? kBiasOfRows : 0);
  params->out = p.out;
  params->out_row = p.out_row;
  params->out_batch = of.out_step / size;
  if (p.out_row % wide == 0 && params->out_batch % wide == 0 &&
      reinterpret_cast<uintptr_t>(p.out) % static_cast<uintptr_t>(wide * size) == 0)
    params->features |= kWideOut;
  fill_extra(p.c, of.c_step, size, p.beta, false, params);
  for (const matrix::Extra& d : p.d) fill_extra(d, 0, size, 1, p.multiply, params);
  params->bias = p.bias;
  params->row_scale = p.row_scale;
  params->column_scale = p.column_scale;
  const auto pairs = [](const float* numbers) { return reinterpret_cast<uintptr_t>(numbers) % 8 == 0; };
  constexpr int wide_both = kWideOut | kWideExtras;
  if ((params->features & wide_both) == wide_both && pairs(p.bias) && pairs(p.column_scale))
    params->features |= kAligned;
  const bool bare = p.bias == nullptr && p.row_scale == nullptr && p.column_scale == nullptr &&
                    params->extra[0].data == nullptr && p.activation == matrix::Activation::none && !sums;
  if (bare && params->features & kAligned) params->features |= kBare;
  params->alpha = p.alpha;
  params->clamp_min = p.clamp_min;
  params->clamp_max = p.clamp_max;
  params->activation = static_cast<int>(p.activation);
  params->of_a = {p.blocks.a, p.blocks.a_row, p.blocks.a_step};
  params->of_b = {p.blocks.b, p.blocks.b_row, p.blocks.b_step};
}

// Whole lines of eight, after which the pattern of a tile in shared memory repeats, or panels of 64; half of a tile
// where the other half of the last one does not exist.
int copied_rows(const Problem& p, const Tiles& form) {
  constexpr i64 half = 64, most = 512;  // rows of products of few tiles
  if (form.halves && p.m > form.rows && p.m <= most && (p.m - 1) % form.rows < half) return static_cast<int>(half);
  const i64 whole = p.a_columns ? 64 : 8;
  return static_cast<int>(std::min<i64>(form.rows / form.ctas, divide_up(p.m, whole) * whole));
}

// The parameters of a launch by tiles of `form` but for where a and b lie, and its estimated time.
tilekiln_status fill_params(const Batch& of, const Build& build, const Tiles& form, Params* params) {
  const Problem& p = of.first;
  const i64 down = divide_up(p.m, form.rows), across = divide_up(p.n, form.columns);
  if (down * across > INT32_MAX / 2 / of.count)
    return fail_argument("out", "had %lld tiles of %d x %d, must have fewer than 2^30 on cuda",
                         down * across * of.count, form.rows, form.columns);
  fill_epilogue(of, params);
  params->m = p.m;
  params->n = p.n;
  params->k = p.k;
  params->products = p.products, params->whole = p.products == 0 ? 0 : p.k / p.products;
  params->grid.tiles_m = static_cast<int>(down);
  params->grid.tiles_n = static_cast<int>(across);
  params->grid.tiles = static_cast<int>(down * across * of.count);
  params->grid.steps = static_cast<int>(divide_up(p.k, build.steps));
  params->grid.rows_a = copied_rows(p, form);
  constexpr int rows_in_flight = 16;
  params->grid.pairs = form.ctas - 1;
  params->grid.splits = form.splits;
  params->grid.group = rows_in_flight / form.ctas;
  return TILEKILN_OK;
}

// Launches it over the tiles of `form`, with memory for the parts of those that are shared.
tilekiln_status launch_shared(const Site& site, const Kernel* kernel, const Build& build, const Tiles& form,
                              const Shares& shares, Params* params) {
  params->grid.whole = static_cast<int>(shares.whole);
  params->grid.shared = (params->grid.tiles - params->grid.whole) * params->grid.steps;
  LaunchMemory memory;
  if (params->grid.shared > 0) {
    const int most_teams = form.rows / 64;
    TILEKILN_TRY(memory.take(site, static_cast<size_t>(2 * shares.grid * form.part_bytes()),
                             static_cast<uint32_t>(most_teams * (params->grid.tiles - params->grid.whole))));
    params->grid.partials = static_cast<float4*>(memory.data());
    params->grid.arrivals = memory.zeros();
  }
  return launch(site, {kernel,
                       form.function,
                       {static_cast<unsigned>(shares.grid * form.ctas * form.splits), 1, 1},
                       static_cast<unsigned>(build.threads),
                       static_cast<unsigned>(build.shared_bytes),
                       params,
                       false,
                       form.early && params->grid.shared == 0,  // memory of a launch comes between two
                       static_cast<unsigned>(form.ctas * form.splits)});
}

Operand operand_a(const Batch& of, const Build& build, const Tiles& form) {
  const Problem& p = of.first;
  return {"a",
          p.a,
          p.a_columns,
          p.m,
          p.k,
          p.lda,
          of.a_step,
          of.count,
          static_cast<uint32_t>(p.a_columns ? build.steps : copied_rows(p, form)),
          (build.lines_a != 0) == p.a_columns,
          p.dtype};
}

Operand operand_b(const Batch& of, const Build& build, const Tiles& form) {
  const Problem& p = of.first;
  return {"b",
          p.b,
          !p.b_columns,
          p.n,
          p.k,
          p.ldb,
          of.b_step,
          of.count,
          static_cast<uint32_t>(p.b_columns ? form.b_columns : build.steps),
          (build.lines_b != 0) != p.b_columns,
          p.dtype};
}

Gathered gathered(const Operand& of) {
  return {static_cast<const uint16_t*>(of.data), of.batch_bytes / of.element_bytes(), of.along_lines ? 1 : of.between,
          of.along_lines ? of.between : 1};
}

[[maybe_unused]] i64 tiles_of(const Batch& of, const Tiles& form) {
  return divide_up(of.first.m, form.rows) * divide_up(of.first.n, form.columns) * of.count;
}

// One launch. `choose` gives the tiles and their shares; `place` says in the parameters how an operand is read,
// `gather` being its feature.
template <class Choose, class Place>
tilekiln_status launch_product(const Site& site, const void* problem, const Choose& choose, const Place& place) {
  const auto& of = *static_cast<const Batch*>(problem);
  const Problem& p = of.first;
  if (p.m == 0 || p.n == 0 || of.count == 0) return TILEKILN_OK;
  TILEKILN_TRY(matrix::refuse_more(p));
  const Kernel* const kernel = find_kernel(p);
  if (kernel == nullptr) return fail(TILEKILN_INTERNAL, "the library has a matrix product for cuda without its kernel");
  const Build& build = build_of(*kernel);
  Shares shares = {};
  const Tiles form = choose(of, build, &shares);
  Params params = {};
  TILEKILN_TRY(fill_params(of, build, form, &params));
  if (p.k > 0) {
    const Operand a = operand_a(of, build, form), b = operand_b(of, build, form);
    TILEKILN_TRY(place(a, kGatherA, &params.a, &params.from_a, &params));
    TILEKILN_TRY(place(b, kGatherB, &params.b, &params.from_b, &params));
    params.a_batches = a.batches() > 1 ? 1 : 0;
    params.b_batches = b.batches() > 1 ? 1 : 0;
  }
  return launch_shared(site, kernel, build, form, shares, &params);
}

}  // namespace
}  // namespace tilekiln::cuda::gemm
