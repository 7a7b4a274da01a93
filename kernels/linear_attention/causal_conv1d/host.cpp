// Arguments of causal_conv1d as the plain data of its engine.
#include "kernels/linear_attention/host.h"
#include "kernels/generated/operators/causal_conv1d_entries.h"

namespace tilekiln::op::causal_conv1d {

tilekiln_status state(const Args& args, tilekiln_shape* shape) {
  *shape = {3, {args.x->shape[0], args.x->shape[2], args.weight->shape[1] - 1}};
  return TILEKILN_OK;
}

void fill(const Args& args, Call& call) {
  linear_attention::Conv1d& to = call.to.problem;
  linear_attention::put_conv(call, args.activation, to);
  to.y = linear_attention::sequences(call.in.y);
  to.last = linear_attention::sequences(call.in.final_state, true);
}

tilekiln_status launch(StageCall<linear_attention::Conv1d>& call) {
  const linear_attention::Conv1d& to = call.problem;
  if (__builtin_expect(!call.backend->takes_units, 0)) return launch_kernel(call, call.choice, to);
  const auto block = static_cast<const linear_attention::Conv1dEngine*>(call.choice.engine)->block[to.dtype];
  // Block 0 hands on a state even of no token.
  const int64_t blocks = std::max<int64_t>(1, to.blocks), many = linear_attention::kConvChannels;
  const int64_t parts = (to.channels + many - 1) / many;
  const double work =
      static_cast<double>(to.batch) * static_cast<double>(to.tokens) * to.channels * (to.silu ? 32 : 12);
  return launch_stage(call, call.choice, to, to.batch * blocks * parts, work, 0, [&](int64_t unit, void*) {
    const int64_t part = unit % parts, sequence = unit / parts;
    const int64_t last = std::min<int64_t>(to.channels, (part + 1) * many);
    block(to, sequence / blocks, sequence % blocks, static_cast<int>(part * many), static_cast<int>(last));
  });
}

}  // namespace tilekiln::op::causal_conv1d
