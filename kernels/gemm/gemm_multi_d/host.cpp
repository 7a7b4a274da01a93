// SPDX-License-Identifier: MIT
// Arguments of gemm_multi_d as the plain data of gemm's engines, and its units.
#include "kernels/generated/operators/gemm_multi_d_entries.h"

#include "kernels/backends/numbers.h"
#include "kernels/gemm/gemm_multi_d/engine.h"
#include "kernels/gemm/host.h"

namespace tilekiln::op::gemm_multi_d {

using matrix::i64;
using matrix::Matrix;
using matrix::MultiD;
using matrix::Problem;
using matrix::Side;

namespace {

// The side of `one` and `with`, and what is multiplied in the place of `one`: absent, with packed lines as `one` has them.
Side side(const Array& one, const Array& with, int how, Matrix* multiplied) {
  if (!with.given()) return {};
  const Matrix second(with), first = *multiplied;
  const bool rows = first.may_be_row();
  const i64 with_row = second.rows == 1 ? 0 : second.row, with_column = second.columns == 1 ? 0 : second.column;
  multiplied->data = nullptr;
  multiplied->row = rows ? first.columns : 1, multiplied->column = rows ? 1 : first.rows;
  const Side by_rows = {one.data,     second.data, first.rows,  first.columns, first.row,
                        first.column, with_row,    with_column, how == 1};
  return rows ? by_rows : Side{one.data,  second.data, first.columns, first.rows, first.column,
                               first.row, with_column, with_row,      how == 1};
}

template <class T> void combine(const Side& s, i64 line, T* to) {
  const T *from = static_cast<const T*>(s.from) + line * s.from_line,
          *with = static_cast<const T*>(s.with) + line * s.with_line;
  for (i64 i = 0; i < s.length; ++i) {
    const float x = core::widen(from[i * s.from_step]), y = core::widen(with[i * s.with_step]);
    core::narrow(s.multiply ? x * y : x + y, to[i]);
  }
}

void combine(const Side& s, matrix::Dtype dtype, i64 line, void* to) {
  if (dtype == matrix::Dtype::fp32) return combine(s, line, static_cast<float*>(to) + line * s.length);
  if (dtype == matrix::Dtype::fp16) return combine(s, line, static_cast<core::fp16*>(to) + line * s.length);
  combine(s, line, static_cast<core::bf16*>(to) + line * s.length);
}

}  // namespace

tilekiln_status features(const Args& args, Call& call) {
  TILEKILN_TRY(matrix::check_clamp(args));
  const Arrays& in = call.in;
  auto& signature = call.signature;
  signature.layout_a =
      Matrix(in.a).may_be_row() ? tilekiln::gemm_multi_d::LayoutA::row : tilekiln::gemm_multi_d::LayoutA::column;
  signature.layout_b =
      Matrix(in.b).may_be_row() ? tilekiln::gemm_multi_d::LayoutB::row : tilekiln::gemm_multi_d::LayoutB::column;
  signature.layout_out =
      Matrix(in.out).is_row_out() ? tilekiln::gemm_multi_d::LayoutOut::row : tilekiln::gemm_multi_d::LayoutOut::column;
  signature.d_count = in.d1.given() ? tilekiln::gemm_multi_d::DCount::_2 : tilekiln::gemm_multi_d::DCount::_1;
  return TILEKILN_OK;
}

// Everything is checked: the problem of the engines.
void fill(const Args& args, Call& call) {
  matrix::check_names<tilekiln::gemm_multi_d::Dtype, tilekiln::gemm_multi_d::Dtype,
                      tilekiln::gemm_multi_d::Activation>();
  const Arrays& in = call.in;
  Problem& p = call.to.problem.product;
  Matrix a(in.a), b(in.b);
  const Side of_a = side(in.a, in.a1, args.a_elementwise, &a), of_b = side(in.b, in.b1, args.b_elementwise, &b);
  const bool transposed = matrix::fill_operands(a, b, Matrix(in.out), &p);
  call.to.problem.a = transposed ? of_b : of_a, call.to.problem.b = transposed ? of_a : of_b;
  if (args.alpha == 0) p.k = 0;
  p.dtype = static_cast<matrix::Dtype>(call.signature.dtype);
  p.out_dtype = static_cast<matrix::OutDtype>(call.signature.dtype);
  matrix::fill_activation(args, call.signature, &p);
  p.multiply = call.signature.elementwise == tilekiln::gemm_multi_d::Elementwise::multiply;
  p.d[0] = matrix::extra(Matrix(in.d0), transposed);
  if (in.d1.given()) p.d[1] = matrix::extra(Matrix(in.d1), transposed);
  p.alpha = args.alpha;
  int64_t* const sizes = call.to.query.sizes;
  sizes[tilekiln::gemm_multi_d::sizes::m] = call.M;
  sizes[tilekiln::gemm_multi_d::sizes::n] = call.N;
  sizes[tilekiln::gemm_multi_d::sizes::k] = call.K;
}

tilekiln_status launch(StageCall<MultiD>& call) {
  namespace at = tilekiln::gemm_multi_d::fields;
  const uint32_t* const how = call.choice.how->fields;
  const matrix::Tile tile = {how[at::tile_m], how[at::tile_n], how[at::tile_k]};
  const MultiD& whole = call.problem;
  const Side &a = whole.a, &b = whole.b;
  if (a.with == nullptr && b.with == nullptr) return matrix::run_product(call, call.choice, whole.product, tile);
  if (!call.backend->takes_units)
    return fail_argument("a1", "or b1 was given, must both be null on a GPU: its kernels read a and b as they lie");
  const i64 bytes = matrix::dtype_size(whole.product.dtype),
            of_a = matrix::divide_up(a.lines * a.length * bytes, 64) * 64;
  CallMemory memory;
  TILEKILN_TRY(memory.get(call, static_cast<size_t>(of_a + b.lines * b.length * bytes) + 64));
  char* const to = memory.as<char>();
  Problem p = whole.product;
  if (a.with != nullptr) p.a = to;
  if (b.with != nullptr) p.b = to + of_a;
  const double work = static_cast<double>(a.lines * a.length + b.lines * b.length);
  if (p.k > 0)
    TILEKILN_TRY(launch_stage(call, call.choice, p, a.lines + b.lines, work, 0, [&](i64 line, void*) {
      line < a.lines ? combine(a, p.dtype, line, to) : combine(b, p.dtype, line - a.lines, to + of_a);
    }));
  return matrix::run_product(call, call.choice, p, tile);
}

}  // namespace tilekiln::op::gemm_multi_d
