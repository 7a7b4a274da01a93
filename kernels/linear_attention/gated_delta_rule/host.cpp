// Arguments of gated_delta_rule as the plain data of its engines.
#include "kernels/generated/operators/gated_delta_rule_entries.h"

#include <cmath>

#include "kernels/runtime/launch.h"

namespace tilekiln::op::gated_delta_rule {

using linear_attention::Heads;

static Heads heads(const Array& from) {
  if (!from.given()) return {};
  return {from.data, from.stride[0], from.stride[1], from.stride[2]};
}
static Heads state(const Array& from) {
  if (!from.given()) return {};
  return {from.data, from.stride[0], from.stride[2], from.stride[1]};
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  linear_attention::Delta& to = call.to.problem;
  to.q = heads(in.q), to.k = heads(in.k), to.v = heads(in.v), to.g = heads(in.g), to.beta = heads(in.beta);
  to.out = heads(in.out), to.past = state(in.initial_state), to.last = state(in.final_state);
  to.batch = call.B, to.tokens = call.S;
  to.heads = static_cast<int>(call.H), to.group = static_cast<int>(call.H / call.Hk);
  to.hdim_k = static_cast<int>(call.D), to.hdim_v = static_cast<int>(call.Dv);
  to.dtype = static_cast<int>(call.signature.dtype);
  to.scale = args.scale != nullptr ? *args.scale : 1 / std::sqrt(static_cast<float>(call.D));
  to.by_channel = call.signature.gate == tilekiln::gated_delta_rule::Gate::channel;
  to.wide_beta = in.beta.dtype == TILEKILN_FP32;
  to.normalise = args.qk_l2norm != 0;
  call.to.query.sizes[tilekiln::gated_delta_rule::sizes::seqlen] = call.S;
}

tilekiln_status launch(StageCall<linear_attention::Delta>& call) {
  const linear_attention::Delta& to = call.problem;
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, to);
  const auto head = static_cast<const linear_attention::DeltaEngine*>(call.choice.engine)->head[to.dtype];
  const double states = static_cast<double>(to.batch) * to.heads * to.hdim_k * to.hdim_v;
  const auto scratch = static_cast<uint64_t>(linear_attention::delta_scratch(to.hdim_k, to.hdim_v)) * sizeof(float);
  return launch_stage(call, call.choice, to, to.batch * to.heads, 4 * states * static_cast<double>(to.tokens + 1),
                      scratch, [&](int64_t unit, void* memory) {
                        head(to, unit / to.heads, static_cast<int>(unit % to.heads), static_cast<float*>(memory));
                      });
}

}  // namespace tilekiln::op::gated_delta_rule
