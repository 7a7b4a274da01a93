// SPDX-License-Identifier: MIT
// Arguments of causal_conv1d as the plain data of its engine.
#include "kernels/linear_attention/host.h"
#include "kernels/generated/operators/causal_conv1d_entries.h"

namespace tilekiln::op::causal_conv1d {

using linear_attention::Conv1d;
using linear_attention::Packed;

tilekiln_status state(const Args& args, tilekiln_shape* shape) { return linear_attention::conv_state(args, shape); }

tilekiln_status sequences(const Args&, Call& call) {
  return linear_attention::read_starts(call.in.cu_seqlens, "x", call.B, call.S, call.to.problem);
}

void fill(const Args& args, Call& call) {
  Conv1d& to = call.to.problem.one;
  linear_attention::put_conv(call, args.activation, call.to.problem, to);
  to.y = linear_attention::sequences(call.in.y);
  to.last = linear_attention::sequences(call.in.final_state, true);
}

tilekiln_status launch(StageCall<Packed<Conv1d>>& call) {
  const Conv1d& to = call.problem.placed();
  const auto block = static_cast<const linear_attention::Conv1dEngine*>(call.choice.engine)->block[to.dtype];
  // Block 0 hands on a state even of no token.
  const int64_t blocks = std::max<int64_t>(1, to.blocks), many = linear_attention::kConvChannels;
  const int64_t parts = (to.channels + many - 1) / many;
  const double work = static_cast<double>(to.batch) * static_cast<double>(blocks) * linear_attention::kConvBlock *
                      to.channels * (to.silu ? 32 : 12);
  return launch_stage(call, call.choice, to, to.batch * blocks * parts, work, 0, [&](int64_t unit, void*) {
    const int64_t part = unit % parts, sequence = unit / parts;
    const int64_t last = std::min<int64_t>(to.channels, (part + 1) * many);
    block(to, sequence / blocks, sequence % blocks, static_cast<int>(part * many), static_cast<int>(last));
  });
}

}  // namespace tilekiln::op::causal_conv1d
