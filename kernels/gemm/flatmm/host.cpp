// SPDX-License-Identifier: MIT
// Arguments of flatmm as the plain data of gemm's engines, and its units.
#include "kernels/generated/operators/flatmm_entries.h"

#include "kernels/gemm/panels.h"

namespace tilekiln::op::flatmm {

using matrix::i64;
using matrix::Matrix;
using matrix::Problem;

tilekiln_status features(const Args& args, Call& call) {
  TILEKILN_TRY(matrix::check_clamp(args));
  const Array& b = call.in.b;
  const i64 word = call.signature.dtype == tilekiln::flatmm::Dtype::bf16 ? 2 : 1;
  TILEKILN_TRY(matrix::check_panels(b, 2, "lane count", matrix::kPanelLanes, "always"));
  TILEKILN_TRY(
      matrix::check_panels(b, 3, "word elements", word, word == 2 ? "those of bf16" : "those of fp16 and fp32"));
  TILEKILN_TRY(matrix::check_panels(b, 1, "words", matrix::divide_up(call.K, word), "the k of a by word elements"));
  TILEKILN_TRY(matrix::check_contiguous_from(b, 0));
  TILEKILN_TRY(matrix::check_contiguous_from(call.in.out, 1));
  if (call.in.c.given()) TILEKILN_TRY(matrix::check_contiguous_from(call.in.c, 1));
  if (call.in.bias.given()) TILEKILN_TRY(matrix::check_contiguous_from(call.in.bias, 0));
  call.signature.layout_a =
      Matrix(call.in.a).may_be_row() ? tilekiln::flatmm::LayoutA::row : tilekiln::flatmm::LayoutA::column;
  return TILEKILN_OK;
}

// Everything is checked: the problem of the engines.
void fill(const Args& args, Call& call) {
  matrix::check_names<tilekiln::flatmm::Dtype, tilekiln::flatmm::Dtype, tilekiln::flatmm::Activation>();
  const Arrays& in = call.in;
  const Matrix a(in.a);
  Problem& p = call.to.problem;
  matrix::fill_panels(call, args.beta, &p);
  if (args.alpha == 0) p.k = 0;
  p.a_columns = !a.may_be_row();
  p.lda = p.a_columns ? a.column : a.row;
  p.b_panels = static_cast<int>(in.b.shape[3]);
  p.dtype = static_cast<matrix::Dtype>(call.signature.dtype);
  p.out_dtype = static_cast<matrix::OutDtype>(call.signature.dtype);
  matrix::fill_activation(args, call.signature, &p);
  p.alpha = args.alpha;
  int64_t* const sizes = call.to.query.sizes;
  sizes[tilekiln::flatmm::sizes::m] = call.M;
  sizes[tilekiln::flatmm::sizes::n] = p.n;
  sizes[tilekiln::flatmm::sizes::k] = call.K;
}

tilekiln_status launch(StageCall<Problem>& call) {
  namespace at = tilekiln::flatmm::fields;
  const uint32_t* const how = call.choice.how->fields;
  return matrix::run_product(call, call.choice, call.problem, {how[at::tile_m], how[at::tile_n], how[at::tile_k]});
}

}  // namespace tilekiln::op::flatmm
