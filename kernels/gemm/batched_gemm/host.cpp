// SPDX-License-Identifier: MIT
// Arguments of batched_gemm as the plain data of gemm's engines, and its units.
#include "kernels/generated/operators/batched_gemm_entries.h"

#include "kernels/gemm/host.h"

namespace tilekiln::op::batched_gemm {

using matrix::Matrix;
using matrix::Problem;

static_assert(static_cast<int>(tilekiln::batched_gemm::Dtype::int8) == static_cast<int>(matrix::Dtype::int8));

tilekiln_status features(const Args& args, Call& call) {
  TILEKILN_TRY(matrix::check_clamp(args));
  const Arrays& in = call.in;
  auto& signature = call.signature;
  if (signature.dtype == tilekiln::batched_gemm::Dtype::int8 && args.alpha != 1)
    return fail_argument("alpha", "was %g, must be 1 when a is int8", static_cast<double>(args.alpha));
  signature.layout_a =
      Matrix(in.a).may_be_row() ? tilekiln::batched_gemm::LayoutA::row : tilekiln::batched_gemm::LayoutA::column;
  signature.layout_b =
      Matrix(in.b).is_row_b() ? tilekiln::batched_gemm::LayoutB::row : tilekiln::batched_gemm::LayoutB::column;
  signature.layout_out =
      Matrix(in.out).is_row_out() ? tilekiln::batched_gemm::LayoutOut::row : tilekiln::batched_gemm::LayoutOut::column;
  return TILEKILN_OK;
}

// Everything is checked: the problem of the engines.
void fill(const Args& args, Call& call) {
  matrix::check_names<tilekiln::batched_gemm::Dtype, tilekiln::batched_gemm::Dtype,
                      tilekiln::batched_gemm::Activation>();
  const Arrays& in = call.in;
  matrix::Batch& batch = call.to.problem;
  Problem& p = batch.first;
  const bool transposed = matrix::fill_operands(Matrix(in.a), Matrix(in.b), Matrix(in.out), &p);
  if (args.alpha == 0) p.k = 0;
  p.dtype = static_cast<matrix::Dtype>(call.signature.dtype);
  p.out_dtype =
      p.dtype == matrix::Dtype::int8 ? matrix::OutDtype::int32 : static_cast<matrix::OutDtype>(call.signature.dtype);
  matrix::fill_activation(args, call.signature, &p);
  if (in.c.given() && args.beta != 0) {
    p.c = matrix::extra(Matrix(in.c), transposed);
    batch.c_step = in.c.stride[0] * dtype_bytes(in.c.dtype);
  }
  p.beta = args.beta;
  p.bias = matrix::numbers(in.bias);
  p.bias_of_rows = transposed;
  p.alpha = args.alpha;
  const Array &left = transposed ? in.b : in.a, &right = transposed ? in.a : in.b;
  batch.count = call.B;
  batch.a_step = left.stride[0] * dtype_bytes(left.dtype);
  batch.b_step = right.stride[0] * dtype_bytes(right.dtype);
  batch.out_step = in.out.stride[0] * dtype_bytes(in.out.dtype);
  int64_t* const sizes = call.to.query.sizes;
  sizes[tilekiln::batched_gemm::sizes::batch] = call.B;
  sizes[tilekiln::batched_gemm::sizes::m] = call.M;
  sizes[tilekiln::batched_gemm::sizes::n] = call.N;
  sizes[tilekiln::batched_gemm::sizes::k] = call.K;
}

tilekiln_status launch(StageCall<matrix::Batch>& call) {
  namespace at = tilekiln::batched_gemm::fields;
  const uint32_t* const how = call.choice.how->fields;
  const matrix::Batch& batch = call.problem;
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, batch);
  const matrix::Engine& engine = *static_cast<const matrix::Engine*>(call.choice.engine);
  const matrix::Tile tile = {how[at::tile_m], how[at::tile_n], how[at::tile_k]};
  const matrix::Cut cut(batch.first, engine, call.threads, batch.count, tile.n);
  const auto run = engine.run[static_cast<int>(batch.first.dtype)];
  const double work = matrix::work_of(batch.first) * static_cast<double>(batch.count);
  return launch_stage(call, call.choice, batch, cut.units() * batch.count, work, engine.scratch_bytes,
                      [&](matrix::i64 number, void* scratch) {
                        Problem p = batch.first;
                        matrix::set_tile(tile, &p);
                        const matrix::i64 index = number / cut.units();
                        p.a = matrix::moved(p.a, index * batch.a_step);
                        p.b = matrix::moved(p.b, index * batch.b_step);
                        p.out = matrix::moved(p.out, index * batch.out_step);
                        if (p.c.data != nullptr) p.c.data = matrix::moved(p.c.data, index * batch.c_step);
                        run(p, cut.unit(p, number % cut.units()), scratch);
                      });
}

}  // namespace tilekiln::op::batched_gemm
