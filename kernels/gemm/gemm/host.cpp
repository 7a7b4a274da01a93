// SPDX-License-Identifier: MIT
// Arguments of gemm as the plain data of its engines, and its units.
#include "kernels/generated/operators/gemm_entries.h"

#include "kernels/gemm/blocks.h"
#include "kernels/gemm/schedule.h"

namespace tilekiln::op::gemm {

using matrix::Matrix;
using matrix::Problem;

static_assert(static_cast<int>(tilekiln::gemm::Dtype::int8) == static_cast<int>(matrix::Dtype::int8) &&
              static_cast<int>(tilekiln::gemm::Dtype::fp8) == static_cast<int>(matrix::Dtype::fp8) &&
              static_cast<int>(tilekiln::gemm::Dtype::bf8) == static_cast<int>(matrix::Dtype::bf8) &&
              static_cast<int>(tilekiln::gemm::Precision::bf16x6) == 2 &&
              static_cast<int>(tilekiln::gemm::OutDtype::int32) == static_cast<int>(matrix::OutDtype::int32));

tilekiln_status blocks_of_a(const Args& args, tilekiln_shape* shape) {
  *shape = {2, {args.a->shape[0], matrix::divide_up(args.a->shape[1], matrix::kBlock)}};
  return TILEKILN_OK;
}

tilekiln_status blocks_of_b(const Args& args, tilekiln_shape* shape) {
  *shape = {2,
            {matrix::divide_up(args.b->shape[1], matrix::kBlock), matrix::divide_up(args.b->shape[0], matrix::kBlock)}};
  return TILEKILN_OK;
}

// Checks arrays of the kernel of few rows on CUDA, which looks at their number itself.
static tilekiln_status check_few_rows(const Call& call) {
  const Arrays& in = call.in;
  const bool narrow = in.a.dtype == TILEKILN_BF16 || in.a.dtype == TILEKILN_FP16;
  for (const Array* array : {&in.a_norm, &in.b_up}) {
    if (!array->given()) continue;
    if (!narrow || in.out.dtype != in.a.dtype || in.a_scale.given())
      return fail_argument(array->name, "was given, must be null but for products of bf16 and fp16 of their own dtype");
    if (!Matrix(in.a).may_be_row() || !Matrix(in.out).is_row_out() || Matrix(in.b).is_row_b())
      return fail_argument(array->name,
                           "was given, must be null but for row-major a and out and a column-major b, the weight of a "
                           "linear layer");
  }
  if (in.a_norm.given()) TILEKILN_TRY(check_last_contiguous(in.a_norm));
  if (!in.b_up.given()) return TILEKILN_OK;
  if (Matrix(in.b_up).is_row_b())
    return fail_argument("b_up", "was row-major, must be column-major, the weight of a linear layer, as b");
  for (const Array* array : {&in.c, &in.bias, &in.row_scale, &in.column_scale}) {
    if (array->given()) return fail_argument(array->name, "was given, must be null with b_up");
  }
  return TILEKILN_OK;
}

tilekiln_status features(const Args& args, Call& call) {
  TILEKILN_TRY(matrix::check_clamp(args));
  TILEKILN_TRY(check_few_rows(call));
  const Arrays& in = call.in;
  auto& signature = call.signature;
  signature.scaled = in.row_scale.given() || in.column_scale.given();
  if (signature.dtype == tilekiln::gemm::Dtype::int8 && !signature.scaled) {
    if (args.alpha != 1)
      return fail_argument("alpha", "was %g, must be 1 when a is int8 and no scale is given",
                           static_cast<double>(args.alpha));
    if (args.beta != 1)
      return fail_argument("beta", "was %g, must be 1 when a is int8 and no scale is given",
                           static_cast<double>(args.beta));
  }
  signature.layout_a = Matrix(in.a).may_be_row() ? tilekiln::gemm::LayoutA::row : tilekiln::gemm::LayoutA::column;
  signature.layout_b = Matrix(in.b).is_row_b() ? tilekiln::gemm::LayoutB::row : tilekiln::gemm::LayoutB::column;
  signature.layout_out =
      Matrix(in.out).may_be_row() ? tilekiln::gemm::LayoutOut::row : tilekiln::gemm::LayoutOut::column;
  return TILEKILN_OK;
}

// Everything is checked: the problem of the engines.
void fill(const Args& args, Call& call) {
  matrix::check_names<tilekiln::gemm::Dtype, tilekiln::gemm::OutDtype, tilekiln::gemm::Activation>();
  const Arrays& in = call.in;
  Problem& p = call.to.problem;
  const bool blocks = in.a_scale.given();
  const bool transposed = !blocks && matrix::fill_operands(Matrix(in.a), Matrix(in.b), Matrix(in.out), &p);
  if (blocks) {
    matrix::fill_rows(Matrix(in.a), Matrix(in.b), Matrix(in.out), &p);
    const Array &a = in.a_scale, &b = in.b_scale;
    p.blocks = {matrix::numbers(a), matrix::numbers(b), a.stride[0], a.stride[1], b.stride[0], b.stride[1]};
    if (p.blocks.a == nullptr) p.blocks.a = p.blocks.b = &matrix::kNoFactors;  // without k there are none
  }
  // An empty sum: 0, even of infinities that an alpha of 0 would make NaN.
  if (args.alpha == 0) p.k = 0;
  p.dtype = static_cast<matrix::Dtype>(call.signature.dtype);
  p.out_dtype = static_cast<matrix::OutDtype>(call.signature.out_dtype);
  matrix::fill_activation(args, call.signature, &p);
  if (in.c.given() && args.beta != 0) p.c = matrix::extra(Matrix(in.c), transposed);
  p.bias = matrix::numbers(in.bias);
  p.row_scale = matrix::numbers(transposed ? in.column_scale : in.row_scale);
  p.row_scale_step = 1;
  p.column_scale = matrix::numbers(transposed ? in.row_scale : in.column_scale);
  p.bias_of_rows = transposed;
  p.alpha = args.alpha;
  p.beta = args.beta;
  p.products = static_cast<unsigned char>(3 * static_cast<int>(call.signature.precision));
  p.b_constant = args.b_is_constant != 0 && !transposed;
  p.more = {};
  if (in.a_norm.given()) p.more.norm = in.a_norm.data;
  if (in.b_up.given()) p.more.up = in.b_up.data, p.more.ld_up = Matrix(in.b_up).column;
  p.more.epsilon = args.norm_epsilon, p.more.rounds = args.norm_rounding == 1;
  int64_t* const sizes = call.to.query.sizes;
  sizes[tilekiln::gemm::sizes::m] = call.M;
  sizes[tilekiln::gemm::sizes::n] = call.N;
  sizes[tilekiln::gemm::sizes::k] = call.K;
}

tilekiln_status launch(StageCall<Problem>& call) {
  namespace at = tilekiln::gemm::fields;
  const uint32_t* const how = call.choice.how->fields;
  if (call.backend->takes_units) TILEKILN_TRY(matrix::refuse_more(call.problem));
  call.problem.fast_sums = static_cast<matrix::Accumulate>(how[at::accumulate]) == matrix::Accumulate::fast;
  if (call.problem.blocks.a != nullptr && call.backend->takes_units)
    return matrix::run_blocks(call, call.choice, call.problem);
  return matrix::run_scheduled(call, call.choice, call.problem, static_cast<matrix::Schedule>(how[at::schedule]),
                               {how[at::tile_m], how[at::tile_n], how[at::tile_k]});
}

}  // namespace tilekiln::op::gemm
