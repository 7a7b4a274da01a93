// SPDX-License-Identifier: MIT
// Arguments of topk_gating as the plain data of its engines.
#include <algorithm>

#include "kernels/generated/operators/topk_gating_entries.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::op::topk_gating {

tilekiln_status routed(const Args& args, tilekiln_shape* shape) {
  const int64_t experts = args.x->shape[1];
  const auto shown = static_cast<long long>(experts);
  if (experts % args.groups != 0)
    return fail_argument("groups", "was %d, must divide %lld, the experts of x", args.groups, shown);
  if (args.topk_groups > args.groups)
    return fail_argument("topk_groups", "was %d, must be at most %d, the groups", args.topk_groups, args.groups);
  const int64_t chosen_from = experts / args.groups * args.topk_groups;
  if (args.topk > chosen_from) {
    return fail_argument("topk", "was %d, must be at most %lld, the experts of %s", args.topk,
                         static_cast<long long>(chosen_from), chosen_from == experts ? "x" : "topk_groups groups");
  }
  *shape = {2, {args.x->shape[0], args.topk + args.shared}};
  return TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  moe::TopkGating& to = call.to.problem;
  to.x = in.x.data, to.x_row = in.x.stride[0];
  to.bias = in.bias.given() ? reinterpret_cast<const float*>(in.bias.data) : nullptr;
  to.weights = reinterpret_cast<float*>(in.weights.data), to.weights_row = in.weights.stride[0];
  to.indices = reinterpret_cast<int*>(in.indices.data), to.indices_row = in.indices.stride[0];
  to.rows = call.M;
  to.experts = static_cast<int>(call.E);
  to.topk = args.topk, to.shared = args.shared;
  to.groups = args.groups, to.topk_groups = args.topk_groups;
  to.dtype = static_cast<int>(call.signature.dtype);
  to.score = static_cast<moe::Score>(call.signature.score);
  to.group_of_two = args.group_score == 0;
  to.renormalise = args.renormalise != 0;
  to.scaling = args.scaling, to.shared_weight = args.shared_weight;
}

tilekiln_status launch(StageCall<moe::TopkGating>& call) {
  const moe::TopkGating& to = call.problem;
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, to);
  const int64_t many = std::max(1, 4096 / to.experts), units = (to.rows + many - 1) / many;
  const uint64_t scratch = 4 * ((static_cast<uint64_t>(to.experts) + 63) / 64 * 64) * sizeof(float);
  const double work = static_cast<double>(to.rows) * to.experts * (48 + 16.0 * (to.topk + to.topk_groups));
  const auto rows = static_cast<const moe::TopkGatingEngine*>(call.choice.engine)->rows[to.dtype];
  return launch_stage(call, call.choice, to, units, work, scratch, [&](int64_t unit, void* memory) {
    rows(to, unit * many, std::min<int64_t>(to.rows, (unit + 1) * many), static_cast<float*>(memory));
  });
}

}  // namespace tilekiln::op::topk_gating
