// SPDX-License-Identifier: MIT
// Arguments of gated_delta_rule_bwd as the plain data of its engine.
#include "kernels/generated/operators/gated_delta_rule_bwd_entries.h"

namespace tilekiln::op::gated_delta_rule_bwd {

using linear_attention::DeltaGradients;
using linear_attention::Packed;

tilekiln_status matrix_state(const Args& args, tilekiln_shape* shape) {
  return linear_attention::delta_state_shape(args, shape);
}

tilekiln_status sequences(const Args&, Call& call) {
  return linear_attention::read_starts(call.in.cu_seqlens, "q", call.B, call.S, call.to.problem);
}

void fill(const Args& args, Call& call) {
  using linear_attention::heads;
  const Arrays& in = call.in;
  DeltaGradients& to = call.to.problem.one;
  linear_attention::put_delta(args, call, call.to.problem, to.made);
  to.of = heads(in.dout), to.q = heads(in.dq), to.k = heads(in.dk), to.v = heads(in.dv);
  to.g = heads(in.dg), to.beta = heads(in.dbeta);
  to.last_of = linear_attention::delta_state(in.dfinal_state);
  to.past = linear_attention::delta_state(in.dinitial_state);
}

tilekiln_status launch(StageCall<Packed<DeltaGradients>>& call) {
  const DeltaGradients& to = call.problem.placed();
  const linear_attention::Delta& made = to.made;
  const auto keys = static_cast<const linear_attention::DeltaGradientsEngine*>(call.choice.engine)->keys[made.dtype];
  const int64_t shared = made.heads / made.group;
  const auto scratch = static_cast<uint64_t>(linear_attention::delta_gradients_scratch(call.problem.longest, made.group,
                                                                                       made.hdim_k, made.hdim_v)) *
                       sizeof(float);
  return launch_stage(call, call.choice, to, made.batch * shared, 16 * linear_attention::delta_work(made), scratch,
                      [&](int64_t unit, void* memory) {
                        keys(to, unit / shared, static_cast<int>(unit % shared), static_cast<float*>(memory));
                      });
}

}  // namespace tilekiln::op::gated_delta_rule_bwd
