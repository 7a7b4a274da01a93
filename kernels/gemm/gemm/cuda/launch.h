// From a checked product to the rows of its kernels: what the pipelines have in common. Included once, by the file of a pipeline, which is
// compiled with -DTILEKILN_TARGET=<the target's name> and -DTILEKILN_KERNELS=<K(name) for every kernel there is>; a library holds those that
// its rows need, the others are null here.
#pragma once
#include <algorithm>

#include "kernels/backends/cuda/kernel.h"
#include "kernels/gemm/gemm/cuda/row.h"
#include "kernels/gemm/lists.h"

#define TILEKILN_JOIN(a, b, c, d) a##b##c##d
#define TILEKILN_ENGINE(target, pipeline) TILEKILN_JOIN(tilekiln_, target, _gemm_, pipeline)

#define K(name) extern "C" __attribute__((weak, visibility("hidden"))) const tilekiln::cuda::Kernel name;
TILEKILN_KERNELS
#undef K

namespace tilekiln::cuda::gemm {
namespace {

using matrix::Batch;
using matrix::Dtype;
using matrix::i64;
using matrix::OutDtype;
using matrix::Problem;

const Build& build_of(const Kernel& kernel) { return *static_cast<const Build*>(kernel.build); }

// That of the layouts; else, as of a matrix of one row, which is of both layouts, any, whose loader gathers.
const Kernel* find_kernel(const Problem& p) {
#define K(name) &name,
  static const Kernel* const kernels[] = {TILEKILN_KERNELS};
#undef K
  const Kernel* other = nullptr;
  for (const Kernel* kernel : kernels) {
    if (kernel == nullptr || (build_of(*kernel).fp16 != 0) != (p.dtype == Dtype::fp16)) continue;
    const Build& build = build_of(*kernel);
    if ((build.lines_a != 0) == p.a_columns && (build.lines_b != 0) != p.b_columns) return kernel;
    other = kernel;
  }
  return other;
}

// a or b, of elements of 16 bits: `lines` rows of a or columns of b, `between` elements apart where they are contiguous along k, else
// the steps along k are. `batch_bytes` from one product's to the next.
struct Operand {
  const char* name;
  const void* data;
  bool along_lines;
  i64 lines, steps, between, batch_bytes, count;
  uint32_t rows;  // of a copy
  bool as_built;  // the build has it so

  [[nodiscard]] i64 batches() const { return batch_bytes == 0 ? 1 : count; }
};

// Strides of one row, and of one array, mean nothing.
bool can_copy(const Operand& of) {
  constexpr i64 most = i64(1) << 39;
  const auto sound = [](i64 bytes) { return bytes > 0 && bytes % 16 == 0 && bytes < most; };
  const i64 rows = of.along_lines ? of.steps : of.lines;
  return reinterpret_cast<uintptr_t>(of.data) % 16 == 0 &&
         (rows == 1 || (of.between < most && sound(of.between * 2))) && (of.batches() == 1 || sound(of.batch_bytes));
}

void fill_extra(const matrix::Extra& from, i64 batch_bytes, i64 size, float factor, bool multiply, Row* row) {
  if (from.data == nullptr) return;
  Extra& to = row->extra[row->extra[0].data != nullptr ? 1 : 0];
  to = {from.data, from.row, from.column, batch_bytes / size, factor, multiply ? 1 : 0};
  const bool wide = from.column == 1 && from.row % 2 == 0 && to.batch % 2 == 0 &&
                    reinterpret_cast<uintptr_t>(from.data) % static_cast<uintptr_t>(2 * size) == 0;
  if (!wide) row->features &= ~kWideExtras;
}

void fill_epilogue(const Batch& of, Row* row) {
  const Problem& p = of.first;
  const bool fp32 = p.out_dtype == OutDtype::fp32;
  const i64 size = fp32 ? 4 : 2, wide = fp32 ? 2 : 8;  // elements of a store
  row->features |= kWideExtras | (fp32 ? kOutFp32 : 0) | (p.bias_of_rows ? kBiasOfRows : 0);
  row->out = p.out;
  row->out_row = p.out_row;
  row->out_batch = of.out_step / size;
  if (p.out_row % wide == 0 && row->out_batch % wide == 0 &&
      reinterpret_cast<uintptr_t>(p.out) % static_cast<uintptr_t>(wide * size) == 0)
    row->features |= kWideOut;
  fill_extra(p.c, of.c_step, size, p.beta, false, row);
  fill_extra(p.d[0], 0, size, 1, p.multiply, row);
  fill_extra(p.d[1], 0, size, 1, p.multiply, row);
  row->bias = p.bias;
  row->row_scale = p.row_scale;
  row->column_scale = p.column_scale;
  const auto pairs = [](const float* numbers) { return reinterpret_cast<uintptr_t>(numbers) % 8 == 0; };
  constexpr int wide_both = kWideOut | kWideExtras;
  if ((row->features & wide_both) == wide_both && pairs(p.bias) && pairs(p.column_scale)) row->features |= kAligned;
  row->alpha = p.alpha;
  row->clamp_min = p.clamp_min;
  row->clamp_max = p.clamp_max;
  row->activation = static_cast<int>(p.activation);
}

// The row of a launch but for where a and b lie; blocks of tiles of `build`.
tilekiln_status fill_row(const Batch& of, const Build& build, Row* row) {
  const Problem& p = of.first;
  const i64 down = (i64(p.m) + build.rows - 1) / build.rows, across = (i64(p.n) + build.columns - 1) / build.columns;
  if (down * across > INT32_MAX / 2 / of.count)
    return fail_argument("out", "had %lld tiles of %d x %d, must have fewer than 2^30 on cuda",
                         down * across * of.count, build.rows, build.columns);
  fill_epilogue(of, row);
  row->m = p.m;
  row->n = p.n;
  row->k = p.k;
  row->tiles_m = static_cast<int>(down);
  row->tiles_n = static_cast<int>(across);
  row->tiles = static_cast<int>(down * across * of.count);
  constexpr int rows_in_flight = 16;
  row->group = rows_in_flight;
  return TILEKILN_OK;
}

Operand operand_a(const Batch& of, const Build& build) {
  const Problem& p = of.first;
  return {"a",
          p.a,
          p.a_columns,
          p.m,
          p.k,
          p.lda,
          of.a_step,
          of.count,
          static_cast<uint32_t>(p.a_columns ? build.steps : build.rows),
          (build.lines_a != 0) == p.a_columns};
}

Operand operand_b(const Batch& of, const Build& build) {
  const Problem& p = of.first;
  return {"b",
          p.b,
          !p.b_columns,
          p.n,
          p.k,
          p.ldb,
          of.b_step,
          of.count,
          static_cast<uint32_t>(p.b_columns ? build.columns : build.steps),
          (build.lines_b != 0) != p.b_columns};
}

Gathered gathered(const Operand& of) {
  return {static_cast<const uint16_t*>(of.data), of.batch_bytes / 2, of.along_lines ? 1 : of.between,
          of.along_lines ? of.between : 1};
}

tilekiln_status fail_kernel() {
  return fail(TILEKILN_INTERNAL, "the library has a matrix product for cuda without its kernel");
}

}  // namespace
}  // namespace tilekiln::cuda::gemm
