// SPDX-License-Identifier: MIT
// Arguments of flatmm_quant as the plain data of gemm's engines, and its units.
#include "kernels/generated/operators/flatmm_quant_entries.h"

#include "kernels/gemm/lists.h"
#include "kernels/gemm/panels.h"

namespace tilekiln::op::flatmm_quant {

using matrix::Grouped;
using matrix::i64;
using matrix::Problem;

tilekiln_status features(const Args& args, Call& call) {
  TILEKILN_TRY(matrix::check_clamp(args));
  const Arrays& in = call.in;
  using Weights = tilekiln::flatmm_quant::Weights;
  const auto weights = call.signature.weights;
  const bool nvfp4 = weights == Weights::nvfp4;
  constexpr i64 least_k = 8;
  if (const int multiple = nvfp4 ? 16 : 32; args.group % multiple != 0)
    return fail_argument("group", "was %d, must be a multiple of %d", static_cast<int>(args.group), multiple);
  if (!nvfp4 && args.b_factor != 1)
    return fail_argument("b_factor", "was %g, must be 1 but with a b of uint8 and b_scale of fp8",
                         static_cast<double>(args.b_factor));
  if (call.K % least_k != 0)
    return fail_argument("a", "k was %lld, must be a multiple of 8: pad a and b with zeros",
                         static_cast<long long>(call.K));
  const bool fp8 = weights == Weights::fp8 || weights == Weights::mxfp8, bytes = fp8 || weights == Weights::int8;
  const i64 word = fp8 ? 2 : 4;
  const i64 elements = bytes ? word : 8;
  TILEKILN_TRY(matrix::check_panels(in.b, 2, "lane count", matrix::kPanelLanes, "always"));
  TILEKILN_TRY(matrix::check_panels(in.b, 3, "word elements", word, "those of its dtype"));
  TILEKILN_TRY(matrix::check_panels(in.b, 1, "words", call.K / elements, "the k of a by elements of a word"));
  TILEKILN_TRY(matrix::check_panels(in.b_scale, 1, "groups", matrix::divide_up(call.K, args.group),
                                    "the k of a by group, rounded up"));
  if (const int factors = args.b_scale->dtype;
      bytes && factors != TILEKILN_FP32 && !(fp8 && factors == TILEKILN_UINT8)) {
    char name[64];
    return fail_argument("b_scale", "dtype was %s, must be %s", dtype_name(factors, name),
                         fp8 ? "fp32 or uint8 with b of fp8" : "fp32 with b of int8");
  }
  if (in.b_zero.given() != (weights == Weights::uint4))
    return fail_argument("b_zero", in.b_zero.given() ? "was given, must be null but with a b_scale of fp16"
                                                     : "was null, must be given with a b_scale of fp16");
  if (in.b_zero.given()) TILEKILN_TRY(matrix::check_contiguous_from(in.b_zero, 0));
  TILEKILN_TRY(matrix::check_contiguous_from(in.b, 0));
  TILEKILN_TRY(matrix::check_contiguous_from(in.b_scale, 0));
  TILEKILN_TRY(matrix::check_contiguous_from(in.out, 1));
  if (in.c.given()) TILEKILN_TRY(matrix::check_contiguous_from(in.c, 1));
  if (in.bias.given()) TILEKILN_TRY(matrix::check_contiguous_from(in.bias, 0));
  if (in.b_up.given()) {
    TILEKILN_TRY(matrix::check_contiguous_from(in.b_up, 0));
    TILEKILN_TRY(matrix::check_contiguous_from(in.b_up_scale, 0));
    for (const Array* array : {&in.c, &in.bias, &in.a_scale}) {
      if (array->given()) return fail_argument(array->name, "was given, must be null with b_up");
    }
  }
  if (in.a_norm.given()) TILEKILN_TRY(check_last_contiguous(in.a_norm));
  if (in.a_scale.given() && args.quantise_a != 0)
    return fail_argument("a_scale", "was given with quantise_a, must be null: rows get factors of their own");
  return TILEKILN_OK;
}

// Everything is checked: the problem of the engines.
void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  Grouped& to = call.to.problem;
  Problem& p = to.product;
  matrix::fill_panels(call, args.beta, &p);
  p.lda = in.a.stride[0];
  p.dtype = matrix::Dtype::fp32;  // of its sums
  p.out_dtype = static_cast<matrix::OutDtype>(call.signature.out_dtype);
  matrix::fill_activation(args, call.signature, &p);
  p.alpha = args.b_factor;
  p.b_constant = args.b_is_constant != 0;
  p.more = {in.a_norm.given() ? in.a_norm.data : nullptr,
            in.b_up.given() ? in.b_up.data : nullptr,
            args.norm_epsilon,
            args.norm_rounding == 1,
            0,
            in.b_up.given() ? matrix::numbers(in.b_up_scale) : nullptr};
  constexpr matrix::Dtype dtypes[] = {matrix::Dtype::fp16, matrix::Dtype::bf16, matrix::Dtype::int8,
                                      matrix::Dtype::fp8};
  to.a_dtype = dtypes[static_cast<int>(call.signature.dtype)];
  to.weights = static_cast<matrix::Weights>(call.signature.weights);
  to.group = args.group;
  to.b_scale = reinterpret_cast<const float*>(in.b_scale.data);
  to.b_zero = in.b_zero.given() ? reinterpret_cast<const unsigned char*>(in.b_zero.data) : nullptr;
  to.a_scale = matrix::numbers(in.a_scale);
  if (in.a_scale.given()) {
    to.a_scale_row = in.a_scale.stride[0];
    to.a_scale_step = in.a_scale.shape[1] == 1 ? 0 : 1;
    // A factor a row: of the whole sum.
    if (to.a_scale_step == 0) {
      p.row_scale = std::exchange(to.a_scale, nullptr);
      p.row_scale_step = to.a_scale_row;
    }
  }
  to.quantise_a = call.signature.quantise_a;
  int64_t* const sizes = call.to.query.sizes;
  sizes[tilekiln::flatmm_quant::sizes::m] = call.M;
  sizes[tilekiln::flatmm_quant::sizes::n] = p.n;
  sizes[tilekiln::flatmm_quant::sizes::k] = call.K;
}

tilekiln_status launch(StageCall<Grouped>& call) {
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, call.problem);
  TILEKILN_TRY(matrix::refuse_more(call.problem.product));
  const matrix::Engine& engine = *static_cast<const matrix::Engine*>(call.choice.engine);
  Grouped g = call.problem;
  CallMemory memory;
  constexpr double each = 16;  // multiply-adds take the time of an element
  const bool wants_sums = g.a_dtype == matrix::Dtype::int8 && engine.block_rows == 0;  // tiles do without
  if ((g.quantise_a || wants_sums) && g.product.m > 0) {
    const i64 m = g.product.m, k = g.product.k, blocks = matrix::divide_up(k, matrix::kSummed);
    const i64 bytes = g.quantise_a ? matrix::divide_up(m * k, 64) * 64 : 0;
    TILEKILN_TRY(memory.get(call, static_cast<size_t>(bytes + m * (blocks + 1) * 4)));
    signed char* const made = memory.as<signed char>();
    float* const scales = static_cast<float*>(matrix::moved(made, bytes));
    int* const sums = static_cast<int*>(matrix::moved(scales, m * 4));
    const matrix::Rows rows = {g.product.a, g.product.lda, g.a_dtype, nullptr, g.product.k, made, scales, sums};
    TILEKILN_TRY(launch_stage(call, call.choice, rows, m, each * m * g.product.k, 0,
                              [&](i64 row, void*) { engine.rows(rows, static_cast<int>(row)); }));
    g.a_sums = sums;
    if (g.quantise_a) {
      g.a_dtype = matrix::Dtype::int8;
      g.product.a = made;
      g.product.lda = k;
      g.product.row_scale = scales;
      g.product.row_scale_step = 1;
    }
  }
  const matrix::Cut cut(g.product, engine, call.threads, 1);
  return launch_stage(call, call.choice, g, cut.units(), matrix::work_of(g.product), engine.scratch_bytes,
                      [&](i64 number, void* scratch) { engine.groups(g, cut.unit(g.product, number), scratch); });
}

}  // namespace tilekiln::op::flatmm_quant
