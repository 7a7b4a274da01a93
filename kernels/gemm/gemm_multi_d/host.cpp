// SPDX-License-Identifier: MIT
// Arguments of gemm_multi_d as the plain data of gemm's engines, and its units.
#include "kernels/generated/operators/gemm_multi_d_entries.h"

#include "kernels/gemm/host.h"

namespace tilekiln::op::gemm_multi_d {

using matrix::Matrix;
using matrix::Problem;

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
  Problem& p = call.to.problem;
  const bool transposed = matrix::fill_operands(Matrix(in.a), Matrix(in.b), Matrix(in.out), &p);
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

tilekiln_status launch(StageCall<Problem>& call) {
  namespace at = tilekiln::gemm_multi_d::fields;
  const uint32_t* const how = call.choice.how->fields;
  return matrix::run_product(call, call.choice, call.problem, {how[at::tile_m], how[at::tile_n], how[at::tile_k]});
}

}  // namespace tilekiln::op::gemm_multi_d
