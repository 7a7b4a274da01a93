// SPDX-License-Identifier: MIT
// Arguments of gemm_quant as the plain data of gemm's engines, and its steps.
#include "kernels/generated/operators/gemm_quant_entries.h"

#include "kernels/gemm/host.h"

namespace tilekiln::op::gemm_quant {

using matrix::i64;
using matrix::Matrix;
using matrix::OutDtype;
using matrix::Problem;

tilekiln_status features(const Args& args, Call& call) {
  using namespace tilekiln::gemm_quant;
  TILEKILN_TRY(matrix::check_clamp(args));
  const Arrays& in = call.in;
  auto& signature = call.signature;
  signature.scaled = in.row_scale.given() || in.column_scale.given();
  signature.layout_a = Matrix(in.a).may_be_row() ? LayoutA::row : LayoutA::column;
  signature.layout_b = Matrix(in.b).is_row_b() ? LayoutB::row : LayoutB::column;
  signature.quantise = args.static_scale > 0 ? Quantise::tensor : Quantise::row;
  return TILEKILN_OK;
}

// Everything is checked: the problem of the engines.
void fill(const Args& args, Call& call) {
  using matrix::Dtype;
  constexpr Dtype dtypes[] = {Dtype::fp16, Dtype::bf16, Dtype::int8, Dtype::fp8};
  static_assert(static_cast<int>(tilekiln::gemm_quant::Dtype::fp8) == 3);
  const Arrays& in = call.in;
  matrix::Quantised& to = call.to.problem;
  Problem& p = to.product;
  matrix::fill_rows(Matrix(in.a), Matrix(in.b), Matrix(in.out), &p);
  if (args.alpha == 0) p.k = 0;
  p.dtype = dtypes[static_cast<int>(call.signature.dtype)];
  p.out_dtype = call.signature.out_dtype == tilekiln::gemm_quant::OutDtype::fp8 ? OutDtype::fp8 : OutDtype::int8;
  matrix::fill_activation(args, call.signature, &p);
  p.bias = matrix::numbers(in.bias);
  p.row_scale = matrix::numbers(in.row_scale);
  p.row_scale_step = 1;
  p.column_scale = matrix::numbers(in.column_scale);
  p.alpha = args.alpha;
  to.scale = reinterpret_cast<float*>(in.out_scale.data);
  to.static_scale = args.static_scale;
  if (args.static_scale > 0) p.out_factor = 1 / args.static_scale;
  int64_t* const sizes = call.to.query.sizes;
  sizes[tilekiln::gemm_quant::sizes::m] = call.M;
  sizes[tilekiln::gemm_quant::sizes::n] = call.N;
  sizes[tilekiln::gemm_quant::sizes::k] = call.K;
}

tilekiln_status launch(StageCall<matrix::Quantised>& call) {
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, call.problem);
  namespace at = tilekiln::gemm_quant::fields;
  const uint32_t* const how = call.choice.how->fields;
  const matrix::Tile tile = {how[at::tile_m], how[at::tile_n], how[at::tile_k]};
  const matrix::Quantised& q = call.problem;
  const i64 m = q.product.m, n = q.product.n;
  if (q.static_scale > 0) {
    TILEKILN_TRY(matrix::run_product(call, call.choice, q.product, tile));
    return launch_stage(call, call.choice, q, 1, static_cast<double>(m), 0,
                        [&](i64, void*) { std::fill_n(q.scale, m, q.static_scale); });
  }
  // Rows of fp32, then what becomes of each.
  CallMemory memory;
  Problem sums = q.product;
  if (m > 0 && n > 0) {
    TILEKILN_TRY(memory.get(call, static_cast<size_t>(m * n) * sizeof(float)));
    sums.out = memory.as<float>(), sums.out_row = n, sums.out_dtype = OutDtype::fp32;
    TILEKILN_TRY(matrix::run_product(call, call.choice, sums, tile));
  }
  const matrix::Engine& engine = *static_cast<const matrix::Engine*>(call.choice.engine);
  const bool fp8 = q.product.out_dtype == OutDtype::fp8;
  const matrix::QuantisedRows rows = {
      sums.out, n, matrix::Dtype::fp32, static_cast<int>(n), fp8, q.product.out, q.product.out_row, q.scale};
  return launch_stage(call, call.choice, rows, m, static_cast<double>(m) * static_cast<double>(n), 0,
                      [&](i64 row, void*) { engine.quantise(rows, static_cast<int>(row)); });
}

}  // namespace tilekiln::op::gemm_quant
