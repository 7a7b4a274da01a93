// SPDX-License-Identifier: MIT
// Arguments of causal_conv1d_bwd as the plain data of its engine.
#include "kernels/linear_attention/host.h"
#include "kernels/generated/operators/causal_conv1d_bwd_entries.h"

namespace tilekiln::op::causal_conv1d_bwd {

using linear_attention::Conv1dGradients;
using linear_attention::Packed;

tilekiln_status state(const Args& args, tilekiln_shape* shape) { return linear_attention::conv_state(args, shape); }

tilekiln_status sequences(const Args&, Call& call) {
  return linear_attention::read_starts(call.in.cu_seqlens, "x", call.B, call.S, call.to.problem);
}

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  Conv1dGradients& to = call.to.problem.one;
  linear_attention::put_conv(call, args.activation, call.to.problem, to.made);
  to.of = linear_attention::sequences(in.dy), to.last_of = linear_attention::sequences(in.dfinal_state, true);
  to.x = linear_attention::sequences(in.dx), to.past = linear_attention::sequences(in.dinitial_state, true);
  to.weight = linear_attention::taps(in.dweight);
  to.bias = in.dbias.given() ? in.dbias.data : nullptr;
}

tilekiln_status launch(StageCall<Packed<Conv1dGradients>>& call) {
  const Conv1dGradients& to = call.problem.placed();
  const auto& engine = *static_cast<const linear_attention::Conv1dGradientsEngine*>(call.choice.engine);
  const auto channels = engine.channels[to.made.dtype];
  const int64_t units = (to.made.channels + linear_attention::kConvGradients - 1) / linear_attention::kConvGradients;
  const double work = static_cast<double>(to.made.batch) * static_cast<double>(to.made.tokens) * to.made.channels * 64;
  return launch_stage(call, call.choice, to, units, work, 0, [&](int64_t unit, void*) {
    channels(to, static_cast<int>(unit) * linear_attention::kConvGradients);
  });
}

}  // namespace tilekiln::op::causal_conv1d_bwd
