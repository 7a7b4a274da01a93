// SPDX-License-Identifier: MIT
// Arguments of topk_softmax as the plain data of its engines.
#include <algorithm>

#include "kernels/generated/operators/topk_softmax_entries.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::op::topk_softmax {

tilekiln_status chosen(const Args& args, tilekiln_shape* shape) {
  const int64_t experts = args.x->shape[1];
  if (args.topk > experts) {
    return fail_argument("topk", "was %d, must be at most %lld, the experts of x", args.topk,
                         static_cast<long long>(experts));
  }
  *shape = {2, {args.x->shape[0], args.topk}};
  return TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  moe::TopkSoftmax& to = call.to.problem;
  to.x = in.x.data, to.x_row = in.x.stride[0];
  to.weights = reinterpret_cast<float*>(in.weights.data), to.weights_row = in.weights.stride[0];
  to.indices = reinterpret_cast<int*>(in.indices.data), to.indices_row = in.indices.stride[0];
  to.rows = call.M;
  to.experts = static_cast<int>(call.E);
  to.topk = args.topk;
  to.dtype = static_cast<int>(call.signature.dtype);
  to.renormalise = args.renormalise;
}

tilekiln_status launch(StageCall<moe::TopkSoftmax>& call) {
  const moe::TopkSoftmax& to = call.problem;
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, to);
  const int64_t many = std::max(1, 4096 / to.experts), units = (to.rows + many - 1) / many;
  const uint64_t scratch = 3 * ((static_cast<uint64_t>(to.experts) + 63) / 64 * 64) * sizeof(float);
  // Measured: 1,024 rows of 128 experts, 8 of them chosen, take 310 us.
  const double work = static_cast<double>(to.rows) * to.experts * (32 + 16.0 * to.topk);
  const auto rows = static_cast<const moe::TopkSoftmaxEngine*>(call.choice.engine)->rows[to.dtype];
  return launch_stage(call, call.choice, to, units, work, scratch, [&](int64_t unit, void* memory) {
    rows(to, unit * many, std::min<int64_t>(to.rows, (unit + 1) * many), static_cast<float*>(memory));
  });
}

}  // namespace tilekiln::op::topk_softmax
