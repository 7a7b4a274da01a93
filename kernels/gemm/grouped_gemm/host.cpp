// SPDX-License-Identifier: MIT
// Arguments of grouped_gemm as the plain data of gemm's engines, and its units.
#include "kernels/generated/operators/grouped_gemm_entries.h"

#include "kernels/gemm/blocks.h"
#include "kernels/gemm/panels.h"

namespace tilekiln::op::grouped_gemm {

using matrix::Matrix;
using matrix::Problem;

namespace {

// An expert's b is panels, as that of flatmm is; experts may lie anywhere.
tilekiln_status check_packed(const Call& call) {
  const Arrays& in = call.in;
  const matrix::i64 word = call.signature.dtype == tilekiln::grouped_gemm::Dtype::bf16 ? 2 : 1;
  TILEKILN_TRY(matrix::check_panels(in.b, 3, "lane count", matrix::kPanelLanes, "always"));
  TILEKILN_TRY(
      matrix::check_panels(in.b, 4, "word elements", word, word == 2 ? "those of bf16" : "those of fp16 and fp32"));
  TILEKILN_TRY(matrix::check_panels(in.b, 2, "words", matrix::divide_up(call.K, word), "the k of a by word elements"));
  TILEKILN_TRY(matrix::check_contiguous_from(in.b, 1));
  TILEKILN_TRY(matrix::check_contiguous_from(in.out, 1));
  if (in.c.given()) TILEKILN_TRY(matrix::check_contiguous_from(in.c, 1));
  return in.bias.given() ? matrix::check_contiguous_from(in.bias, 1) : TILEKILN_OK;
}

tilekiln_status read_starts(Call& call) {
  const Array& from = call.in.starts;
  const auto* const entries = reinterpret_cast<const int32_t*>(from.data);
  std::vector<int32_t>& starts = call.to.problem.starts;
  starts.resize(static_cast<size_t>(call.G) + 1);
  int32_t least = 0;
  for (size_t i = 0; i < starts.size(); ++i) {
    starts[i] = entries[static_cast<matrix::i64>(i) * from.stride[0]];
    if (starts[i] < least)
      return fail_argument("starts", "entry %zu was %d, must be at least %d, %s", i, starts[i], least,
                           i == 0 ? "the first row" : "the one before");
    least = starts[i];
  }
  if (least > call.T)
    return fail_argument("starts", "entry %zu was %d, must be at most %lld, the row count of a", starts.size() - 1,
                         least, static_cast<long long>(call.T));
  if (!call.in.counts.given()) return TILEKILN_OK;
  std::vector<int32_t>& ends = call.to.problem.ends;
  ends.assign(starts.begin() + 1, starts.end());
  for (size_t i = 0; i < ends.size(); ++i) {
    const Array& counts = call.in.counts;
    const int32_t count = reinterpret_cast<const int32_t*>(counts.data)[static_cast<matrix::i64>(i) * counts.stride[0]];
    if (count < 0 || count > ends[i] - starts[i])
      return fail_argument("counts", "entry %zu was %d, must be 0 or above and at most %d, the rows of the group", i,
                           count, ends[i] - starts[i]);
    ends[i] = starts[i] + count;
  }
  return TILEKILN_OK;
}

}  // namespace

tilekiln_status blocks_of_a(const Args& args, tilekiln_shape* shape) {
  *shape = {2, {args.a->shape[0], matrix::divide_up(args.a->shape[1], matrix::kBlock)}};
  return TILEKILN_OK;
}

tilekiln_status blocks_of_b(const Args& args, tilekiln_shape* shape) {
  *shape = {3,
            {args.b->shape[0], matrix::divide_up(args.b->shape[2], matrix::kBlock),
             matrix::divide_up(args.b->shape[1], matrix::kBlock)}};
  return TILEKILN_OK;
}

tilekiln_status features(const Args& args, Call& call) {
  using tilekiln::grouped_gemm::LayoutB;
  TILEKILN_TRY(matrix::check_clamp(args));
  const Arrays& in = call.in;
  if (in.starts.shape[0] != call.G + 1)
    return fail_argument("starts", "groups + 1 was %lld, must be %lld, the group count of b and 1",
                         static_cast<long long>(in.starts.shape[0]), static_cast<long long>(call.G + 1));
  if (call.to.backend->takes_units) TILEKILN_TRY(read_starts(call));
  const bool packed = call.form == Form::packed;
  const bool fp8 = call.signature.dtype == tilekiln::grouped_gemm::Dtype::fp8;
  const bool int8 = call.signature.dtype == tilekiln::grouped_gemm::Dtype::int8;
  if (int8) {
    if (packed) return fail_argument("b", "had 5 dimensions, must have 3: int8 has no panels here");
    if (!in.row_scale.given() && !in.column_scale.given())
      return fail_argument("row_scale", "was null, must be given, or column_scale, with a of int8");
    if (in.row_scale.given()) TILEKILN_TRY(matrix::check_contiguous_from(in.row_scale, 0));
    if (in.column_scale.given()) TILEKILN_TRY(matrix::check_contiguous_from(in.column_scale, 1));
  }
  if (fp8) {
    if (packed) return fail_argument("b", "had 5 dimensions, must have 3: fp8 has no panels here");
    if (!in.a_scale.given()) return fail_argument("a_scale", "was null, must be given, as b_scale, with a of fp8");
  }
  if (packed) TILEKILN_TRY(check_packed(call));
  const Matrix b(in.b);
  const bool row = fp8 || int8 ? b.is_row_b() : b.may_be_row();
  call.signature.layout_b = packed ? LayoutB::packed : row ? LayoutB::row : LayoutB::column;
  return TILEKILN_OK;
}

// Everything is checked: the problem of the engines.
void fill(const Args& args, Call& call) {
  matrix::check_names<tilekiln::grouped_gemm::Dtype, tilekiln::grouped_gemm::Dtype,
                      tilekiln::grouped_gemm::Activation>();
  const Arrays& in = call.in;
  matrix::Groups& groups = call.to.problem;
  Problem& p = groups.first;
  if (call.form == Form::packed) {
    p.k = static_cast<int>(call.K);
    p.n = static_cast<int>(call.P * matrix::kPanelLanes);
    p.a = in.a.data, p.b = in.b.data, p.out = in.out.data;
    p.lda = in.a.stride[0], p.out_row = in.out.stride[0];
    p.b_panels = static_cast<int>(in.b.shape[4]);
  } else {
    matrix::fill_rows(Matrix(in.a), Matrix(in.b), Matrix(in.out), &p);
  }
  if (in.c.given() && args.beta != 0) p.c = {in.c.data, in.c.stride[0], 1};
  p.beta = args.beta;
  const bool fp8 = call.signature.dtype == tilekiln::grouped_gemm::Dtype::fp8;
  const bool int8 = call.signature.dtype == tilekiln::grouped_gemm::Dtype::int8, bytes = fp8 || int8;
  p.dtype = fp8 ? matrix::Dtype::fp8 : int8 ? matrix::Dtype::int8 : static_cast<matrix::Dtype>(call.signature.dtype);
  p.out_dtype = bytes ? matrix::OutDtype::bf16 : static_cast<matrix::OutDtype>(call.signature.dtype);
  p.row_scale = matrix::numbers(in.row_scale), p.row_scale_step = 1;
  p.column_scale = matrix::numbers(in.column_scale);
  if (in.column_scale.given()) groups.factors_step = in.column_scale.stride[0];
  if (fp8) {
    const Array &of_a = in.a_scale, &of_b = in.b_scale;
    p.blocks = {matrix::numbers(of_a), matrix::numbers(of_b), of_a.stride[0],
                of_a.stride[1],        of_b.stride[1],        of_b.stride[2]};
    groups.factors_step = of_b.stride[0];
    if (p.blocks.a == nullptr) p.blocks.a = p.blocks.b = &matrix::kNoFactors;  // without k there are none
  }
  matrix::fill_activation(args, call.signature, &p);
  p.bias = matrix::numbers(in.bias);
  p.alpha = 1;
  const matrix::i64 size = dtype_bytes(in.a.dtype), out_size = dtype_bytes(in.out.dtype);
  groups.a_row = in.a.stride[0] * size;
  groups.out_row = in.out.stride[0] * out_size;
  groups.c_row = in.c.given() ? in.c.stride[0] * out_size : 0;
  groups.b_step = in.b.stride[0] * size;
  if (!call.to.backend->takes_units) {
    groups.device_starts = reinterpret_cast<const int*>(in.starts.data);
    if (in.counts.given()) groups.device_counts = reinterpret_cast<const int*>(in.counts.data);
    p.m = static_cast<int>(call.T);
  }
  groups.bias_step = in.bias.given() ? in.bias.stride[0] * static_cast<matrix::i64>(sizeof(float)) : 0;
  int64_t* const sizes = call.to.query.sizes;
  sizes[tilekiln::grouped_gemm::sizes::rows] = call.T;
  sizes[tilekiln::grouped_gemm::sizes::groups] = call.G;
  sizes[tilekiln::grouped_gemm::sizes::n] = p.n;
  sizes[tilekiln::grouped_gemm::sizes::k] = call.K;
}

tilekiln_status launch(StageCall<matrix::Groups>& call) {
  namespace at = tilekiln::grouped_gemm::fields;
  const uint32_t* const how = call.choice.how->fields;
  const matrix::Tile tile = {how[at::tile_m], how[at::tile_n], how[at::tile_k]};
  const matrix::Groups& groups = call.problem;
  if (__builtin_expect(!call.backend->takes_units, 0))
    return launch_kernel(call, call.choice,
                         matrix::DeviceGroups{groups.first, groups.device_starts, groups.device_counts,
                                              call.query.sizes[tilekiln::grouped_gemm::sizes::groups], groups.b_step,
                                              groups.bias_step, groups.factors_step});
  const auto product_of = [&](size_t group) {
    Problem p = groups.first;
    const matrix::i64 start = groups.starts[group], index = static_cast<matrix::i64>(group);
    p.m = (groups.ends.empty() ? groups.starts[group + 1] : groups.ends[group]) - groups.starts[group];
    p.a = matrix::moved(p.a, start * groups.a_row);
    p.out = matrix::moved(p.out, start * groups.out_row);
    if (p.c.data != nullptr) p.c.data = matrix::moved(p.c.data, start * groups.c_row);
    p.b = matrix::moved(p.b, index * groups.b_step);
    p.bias = static_cast<const float*>(matrix::moved(p.bias, index * groups.bias_step));
    if (p.row_scale != nullptr) p.row_scale += start;
    if (p.column_scale != nullptr) p.column_scale += index * groups.factors_step;
    if (p.blocks.a == nullptr) return matrix::set_tile(tile, &p), p;
    p.blocks.a += start * p.blocks.a_row, p.blocks.b += index * groups.factors_step;
    return p;
  };
  const size_t count = groups.starts.size() - 1;
  if (groups.first.blocks.a == nullptr)
    return matrix::run_products(call, call.choice, groups.first, count, product_of, tile.n);
  for (size_t group = 0; group < count; ++group)
    if (const Problem p = product_of(group); p.m > 0) TILEKILN_TRY(matrix::run_blocks(call, call.choice, p));
  return TILEKILN_OK;
}

}  // namespace tilekiln::op::grouped_gemm
