// SPDX-License-Identifier: MIT
// Parameters of the kernels from a checked product, and the launch of a workgroup a tile. Included once, by the file of
// a pipeline, which is compiled with -DTILEKILN_TARGET=<the target's name> and as kernels/backends/hip/held.h says.
#pragma once
#include <algorithm>

#include "kernels/backends/hip/host_words.h"
#include "kernels/gemm/gemm/hip/params.h"
#include "kernels/gemm/lists.h"

#define TILEKILN_JOIN(a, b, c, d) a##b##c##d
#define TILEKILN_ENGINE(target, pipeline) TILEKILN_JOIN(tilekiln_, target, _gemm_, pipeline)

namespace tilekiln::hip::gemm {
namespace {

using matrix::Batch;
using matrix::Dtype;
using matrix::i64;
using matrix::OutDtype;
using matrix::Problem;

constexpr i64 bytes = 2;  // of an element of a and b

// `across`: neighbouring lines lie together, else neighbours along k; the other stride is `between`.
void fill_operand(const void* data, bool across, i64 between, i64 batch_bytes, int across_bit, int wide_bit,
                  Operand* to, Params* params) {
  *to = {data, batch_bytes / bytes, across ? 1 : between, across ? between : 1};
  if (across) {
    params->features |= across_bit;
  } else if (reinterpret_cast<uintptr_t>(data) % 16 == 0 && between * bytes % 16 == 0 && batch_bytes % 16 == 0) {
    params->features |= wide_bit;
  }
}

// The kernel of a product whose name begins so; null: the library has none.
const Kernel* find_product(const char* name, const Problem& p) {
  const bool bf16 = p.dtype == Dtype::bf16;
  return find_kernel(name, [&](const Kernel& one) { return (build_as<Build>(one).bf16 != 0) == bf16; });
}

tilekiln_status fill_params(const Batch& of, const Build& build, Params* to) {
  const Problem& p = of.first;
  const i64 down = (i64(p.m) + build.rows - 1) / build.rows, across = (i64(p.n) + build.columns - 1) / build.columns;
  constexpr i64 most_tiles = 1 << 22, most_batch = 65535;
  if (down * across > most_tiles)
    return fail_argument("out", "had %lld tiles of %d x %d, must have at most %lld on hip", down * across, build.rows,
                         build.columns, most_tiles);
  if (of.count > most_batch)
    return fail_argument("out", "had a batch of %lld, must have at most %lld on hip", of.count, most_batch);
  Params& params = *to;
  fill_operand(p.a, p.a_columns, p.lda, of.a_step, kAcrossA, kWideA, &params.a, &params);
  fill_operand(p.b, !p.b_columns, p.ldb, of.b_step, kAcrossB, kWideB, &params.b, &params);
  const bool fp32 = p.out_dtype == OutDtype::fp32;
  const i64 size = fp32 ? 4 : 2;
  params.out = p.out, params.out_row = p.out_row, params.out_batch = of.out_step / size;
  matrix::add_extra(p.c, of.c_step, size, p.beta, false, params.extra);
  for (const matrix::Extra& d : p.d) matrix::add_extra(d, 0, size, 1, p.multiply, params.extra);
  params.features |= (fp32 ? kOutFp32 : 0) | (p.bias_of_rows ? kBiasOfRows : 0);
  params.bias = p.bias, params.row_scale = p.row_scale, params.column_scale = p.column_scale;
  params.alpha = p.alpha, params.clamp_min = p.clamp_min, params.clamp_max = p.clamp_max;
  params.m = p.m, params.n = p.n, params.k = p.k;
  params.tiles_m = static_cast<int>(down), params.tiles_n = static_cast<int>(across);
  params.activation = static_cast<int>(p.activation);
  return TILEKILN_OK;
}

[[maybe_unused]] tilekiln_status launch_waves(const Site& site, const void* problem) {
  const auto& of = *static_cast<const Batch*>(problem);
  const Problem& p = of.first;
  TILEKILN_TRY(matrix::refuse_more(p));
  if (p.m == 0 || p.n == 0 || of.count == 0) return TILEKILN_OK;
  const Kernel* const kernel = find_product("gemm_", p);
  if (kernel == nullptr) return fail_kernel("gemm");
  const Build& build = build_as<Build>(*kernel);
  Params params = {};
  TILEKILN_TRY(fill_params(of, build, &params));
  const auto tiles = static_cast<unsigned>(params.tiles_m) * static_cast<unsigned>(params.tiles_n);
  return launch(site, {kernel,
                       "tilekiln_gemm",
                       {tiles, static_cast<unsigned>(of.count), 1},
                       static_cast<unsigned>(build.threads),
                       &params,
                       sizeof(params)});
}

}  // namespace
}  // namespace tilekiln::hip::gemm
