// SPDX-License-Identifier: MIT
// Arguments of moe_sorting as the plain data of its engine.
#include <algorithm>

#include "kernels/generated/operators/moe_sorting_entries.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::op::moe_sorting {

tilekiln_status masks(const Args& args, tilekiln_shape* shape) {
  *shape = {1, {args.experts}};
  return TILEKILN_OK;
}

// Bound of padding: of e experts that have tokens each pads at most unit - 1, and those that have none a unit: the most is with one of
// them. A caller's arrays may be shorter, as upstream makes them: enough where the experts of a token are distinct, or empty ones are
// skipped.
tilekiln_status padded(const Args& args, tilekiln_shape* shape) {
  const int64_t tokens = args.topk_ids->shape[0], topk = args.topk_ids->shape[1], experts = args.experts;
  int64_t chosen = 0;
  const int64_t padding = experts * args.unit - (tokens > 0 ? 1 : 0);
  if (__builtin_mul_overflow(tokens, topk, &chosen) || chosen + padding > INT32_MAX || chosen < 0) {
    return fail_argument("topk_ids",
                         "was (%lld, %lld) for %d experts in units of %d, must leave at most 2^31 - 1 elements",
                         static_cast<long long>(tokens), static_cast<long long>(topk), args.experts, args.unit);
  }
  const int64_t least = experts * args.unit - (args.skip_empty ? experts : topk);
  const tilekiln_tensor* const given = args.sorted_token_ids;
  int64_t length = chosen + padding;
  if (given != nullptr && given->ndim == 1 && given->shape[0] >= chosen + std::max<int64_t>(0, least))
    length = std::min(length, given->shape[0]);
  *shape = {1, {length}};
  return TILEKILN_OK;
}

tilekiln_status padded_units(const Args& args, tilekiln_shape* shape) {
  TILEKILN_TRY(padded(args, shape));
  shape->length[0] = (shape->length[0] + args.unit - 1) / args.unit;
  return TILEKILN_OK;
}

tilekiln_status totals(const Args&, tilekiln_shape* shape) {
  *shape = {1, {2}};
  return TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  moe::MoeSorting& to = call.to.problem;
  to.topk_ids = reinterpret_cast<const int*>(in.topk_ids.data), to.ids_row = in.topk_ids.stride[0];
  to.topk_weights = reinterpret_cast<const float*>(in.topk_weights.data), to.weights_row = in.topk_weights.stride[0];
  if (in.expert_mask.given()) to.expert_mask = reinterpret_cast<const int*>(in.expert_mask.data);
  if (in.local_tokens.given()) to.local_tokens = reinterpret_cast<const int*>(in.local_tokens.data);
  to.sorted_token_ids = reinterpret_cast<int*>(in.sorted_token_ids.data);
  to.sorted_weights = reinterpret_cast<float*>(in.sorted_weights.data);
  to.sorted_expert_ids = reinterpret_cast<int*>(in.sorted_expert_ids.data);
  to.total_tokens_post_pad = reinterpret_cast<int*>(in.total_tokens_post_pad.data);
  if (in.out.given() && !in.out.empty()) {
    const int64_t bytes = dtype_bytes(in.out.dtype);
    to.out = in.out.data, to.out_row = in.out.stride[0] * bytes, to.out_bytes = in.out.shape[1] * bytes;
  }
  to.tokens = static_cast<int>(call.M);
  to.topk = static_cast<int>(call.K);
  to.experts = args.experts;
  to.unit = args.unit;
  to.skip_empty = args.skip_empty;
  to.room = static_cast<int>(in.sorted_token_ids.shape[0]);
}

tilekiln_status launch(StageCall<moe::MoeSorting>& call) {
  const moe::MoeSorting& to = call.problem;
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, to);
  const int64_t many = std::max<int64_t>(1, 65536 / (to.out_bytes + 1));
  const int64_t zeroing = to.out != nullptr ? (to.tokens + many - 1) / many : 0;
  const double work = 64.0 * to.tokens * to.topk + static_cast<double>(to.out_bytes) * to.tokens;
  const auto& engine = *static_cast<const moe::MoeSortingEngine*>(call.choice.engine);
  return launch_stage(call, call.choice, to, 1 + zeroing, work, sizeof(int) * static_cast<uint64_t>(to.experts),
                      [&](int64_t unit, void* scratch) {
                        if (unit == 0) return engine.sort(to, static_cast<int*>(scratch));
                        engine.zero(to, (unit - 1) * many, std::min<int64_t>(to.tokens, unit * many));
                      });
}

}  // namespace tilekiln::op::moe_sorting
