// Arguments of gemm as the plain data of its engines, and its units.
#include <algorithm>

#include "tilekiln/generated/operators/gemm_entries.h"
#include "tilekiln/runtime/parallel.h"

namespace tilekiln::op::gemm {
namespace {

using matrix::i64;
using matrix::Problem;

// engine.h names dtypes and activations as family.yaml does, in its order.
static_assert(static_cast<int>(tilekiln::gemm::Dtype::fp32) == static_cast<int>(matrix::Dtype::fp32) &&
              static_cast<int>(tilekiln::gemm::Dtype::fp16) == static_cast<int>(matrix::Dtype::fp16) &&
              static_cast<int>(tilekiln::gemm::Dtype::bf16) == static_cast<int>(matrix::Dtype::bf16) &&
              static_cast<int>(tilekiln::gemm::Dtype::int8) == static_cast<int>(matrix::Dtype::int8));
static_assert(static_cast<int>(tilekiln::gemm::Activation::none) == static_cast<int>(matrix::Activation::none) &&
              static_cast<int>(tilekiln::gemm::Activation::relu) == static_cast<int>(matrix::Activation::relu) &&
              static_cast<int>(tilekiln::gemm::Activation::gelu) == static_cast<int>(matrix::Activation::gelu) &&
              static_cast<int>(tilekiln::gemm::Activation::gelu_tanh) ==
                  static_cast<int>(matrix::Activation::gelu_tanh) &&
              static_cast<int>(tilekiln::gemm::Activation::silu) == static_cast<int>(matrix::Activation::silu));

// A dimension of one element has no stride to look at: such an array is of both layouts.
bool may_be_row(const Array& array) { return array.stride[1] == 1 || array.shape[1] <= 1; }
bool may_be_column(const Array& array) { return array.stride[0] == 1 || array.shape[0] <= 1; }

i64 divide_up(i64 a, i64 b) { return (a + b - 1) / b; }

}  // namespace

tilekiln_status features(const Args& args, Call& call) {
  const Arrays& in = call.in;
  auto& signature = call.signature;
  if (signature.dtype == tilekiln::gemm::Dtype::int8) {
    if (args.alpha != 1)
      return fail_argument("alpha", "was %g, must be 1 when a is int8", static_cast<double>(args.alpha));
    if (args.beta != 1)
      return fail_argument("beta", "was %g, must be 1 when a is int8", static_cast<double>(args.beta));
  }
  signature.layout_a = may_be_row(in.a) ? tilekiln::gemm::LayoutA::row : tilekiln::gemm::LayoutA::column;
  signature.layout_b = may_be_row(in.b) ? tilekiln::gemm::LayoutB::row : tilekiln::gemm::LayoutB::column;
  // One column that is contiguous is better a row of the transposed problem: lanes run along rows.
  const bool row = may_be_row(in.out) && !(call.N == 1 && call.M > 1 && may_be_column(in.out));
  signature.layout_out = row ? tilekiln::gemm::LayoutOut::row : tilekiln::gemm::LayoutOut::column;
  return TILEKILN_OK;
}

// Everything is checked: the problem of the engines. Their out is row-major, so a column-major one is that of the
// transposed problem, b^T a^T.
void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  const bool transposed = call.signature.layout_out == tilekiln::gemm::LayoutOut::column;
  const bool a_columns = call.signature.layout_a == tilekiln::gemm::LayoutA::column;
  const bool b_columns = call.signature.layout_b == tilekiln::gemm::LayoutB::column;
  const Array &left = transposed ? in.b : in.a, &right = transposed ? in.a : in.b;
  Problem& p = call.to.problem;
  p.dtype = static_cast<matrix::Dtype>(call.signature.dtype);
  p.activation = static_cast<matrix::Activation>(call.signature.activation);
  p.m = static_cast<int>(transposed ? call.N : call.M);
  p.n = static_cast<int>(transposed ? call.M : call.N);
  // An empty sum: 0, even of infinities that an alpha of 0 would make NaN.
  p.k = args.alpha == 0 ? 0 : static_cast<int>(call.K);
  p.a = left.data;
  p.b = right.data;
  p.a_columns = transposed ? !b_columns : a_columns;
  p.b_columns = transposed ? !a_columns : b_columns;
  p.lda = left.stride[(transposed ? b_columns : a_columns) ? 1 : 0];
  p.ldb = right.stride[(transposed ? a_columns : b_columns) ? 1 : 0];
  p.out = in.out.data;
  p.out_row = in.out.stride[transposed ? 1 : 0];
  if (in.c.given() && args.beta != 0) {
    p.c = in.c.data;
    p.c_row = in.c.stride[transposed ? 1 : 0];
    p.c_column = in.c.stride[transposed ? 0 : 1];
  }
  if (in.bias.given()) p.bias = reinterpret_cast<const float*>(in.bias.data);
  p.bias_of_rows = transposed;
  p.alpha = args.alpha;
  p.beta = args.beta;
  int64_t* const sizes = call.to.query.sizes;
  sizes[tilekiln::gemm::sizes::m] = call.M;
  sizes[tilekiln::gemm::sizes::n] = call.N;
  sizes[tilekiln::gemm::sizes::k] = call.K;
}

tilekiln_status launch(StageCall<Problem>& call) {
  const Problem& p = call.problem;
  if (p.m == 0 || p.n == 0) return TILEKILN_OK;
  const matrix::Engine& engine = *static_cast<const matrix::Engine*>(call.choice.engine);
  const i64 across = divide_up(p.n, engine.most_columns);
  // Four units a thread, so that none waits long for the last; results do not depend on where out is cut.
  const i64 wanted = call.threads > 1 ? divide_up(4 * i64(call.threads), across) : 1;
  constexpr i64 least_rows = 48;
  const i64 down = std::clamp<i64>(p.m / least_rows, 1, wanted);
  const i64 rows = divide_up(p.m, down);
  const i64 count = divide_up(p.m, rows);
  const auto unit = engine.run[static_cast<int>(p.dtype)];
  const double work = static_cast<double>(p.m) * p.n * (p.k + 1.0);
  return run_units(call, count * across, work, engine.scratch_bytes, [&](i64 number, void* scratch) {
    // Down first: neighbours share their columns of b.
    const i64 m = number % count * rows, n = number / count * engine.most_columns;
    const matrix::Unit one = {static_cast<int>(m), static_cast<int>(std::min<i64>(m + rows, p.m)), static_cast<int>(n),
                              static_cast<int>(std::min<i64>(n + engine.most_columns, p.n))};
    unit(p, one, scratch);
  });
}

}  // namespace tilekiln::op::gemm
