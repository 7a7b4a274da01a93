// SPDX-License-Identifier: MIT
// Arguments of grouped_gemm as the plain data of gemm's engines, and its units.
#include "kernels/generated/operators/grouped_gemm_entries.h"

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
  return TILEKILN_OK;
}

}  // namespace

tilekiln_status features(const Args& args, Call& call) {
  using tilekiln::grouped_gemm::LayoutB;
  TILEKILN_TRY(matrix::check_clamp(args));
  const Arrays& in = call.in;
  if (in.starts.shape[0] != call.G + 1)
    return fail_argument("starts", "groups + 1 was %lld, must be %lld, the group count of b and 1",
                         static_cast<long long>(in.starts.shape[0]), static_cast<long long>(call.G + 1));
  if (call.to.backend->takes_units) TILEKILN_TRY(read_starts(call));
  const bool packed = call.form == Form::packed;
  if (packed) TILEKILN_TRY(check_packed(call));
  call.signature.layout_b = packed ? LayoutB::packed : Matrix(in.b).may_be_row() ? LayoutB::row : LayoutB::column;
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
  p.dtype = static_cast<matrix::Dtype>(call.signature.dtype);
  p.out_dtype = static_cast<matrix::OutDtype>(call.signature.dtype);
  matrix::fill_activation(args, call.signature, &p);
  p.bias = matrix::numbers(in.bias);
  p.alpha = 1;
  const matrix::i64 size = dtype_bytes(in.a.dtype);
  groups.a_row = in.a.stride[0] * size;
  groups.out_row = in.out.stride[0] * size;
  groups.c_row = in.c.given() ? in.c.stride[0] * size : 0;
  groups.b_step = in.b.stride[0] * size;
  if (!call.to.backend->takes_units) {
    groups.device_starts = reinterpret_cast<const int*>(in.starts.data);
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
    return launch_kernel(
        call, call.choice,
        matrix::DeviceGroups{groups.first, groups.device_starts,
                             call.query.sizes[tilekiln::grouped_gemm::sizes::groups], groups.b_step, groups.bias_step});
  return matrix::run_products(
      call, call.choice, groups.first, groups.starts.size() - 1,
      [&](size_t group) {
        Problem p = groups.first;
        matrix::set_tile(tile, &p);
        const matrix::i64 start = groups.starts[group], index = static_cast<matrix::i64>(group);
        p.m = groups.starts[group + 1] - groups.starts[group];
        p.a = matrix::moved(p.a, start * groups.a_row);
        p.out = matrix::moved(p.out, start * groups.out_row);
        if (p.c.data != nullptr) p.c.data = matrix::moved(p.c.data, start * groups.c_row);
        p.b = matrix::moved(p.b, index * groups.b_step);
        p.bias = static_cast<const float*>(matrix::moved(p.bias, index * groups.bias_step));
        return p;
      },
      tile.n);
}

}  // namespace tilekiln::op::grouped_gemm
