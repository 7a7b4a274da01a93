// SPDX-License-Identifier: MIT
// Arguments of gated_delta_rule as the plain data of its engines.
#include "kernels/generated/operators/gated_delta_rule_entries.h"

namespace tilekiln::op::gated_delta_rule {

using linear_attention::Delta;
using linear_attention::Packed;

tilekiln_status matrix_state(const Args& args, tilekiln_shape* shape) {
  return linear_attention::delta_state_shape(args, shape);
}

tilekiln_status sequences(const Args&, Call& call) {
  return linear_attention::read_starts(call.in.cu_seqlens, "q", call.B, call.S, call.to.problem);
}

void fill(const Args& args, Call& call) {
  Delta& to = call.to.problem.one;
  linear_attention::put_delta(args, call, call.to.problem, to);
  to.out = linear_attention::heads(call.in.out), to.last = linear_attention::delta_state(call.in.final_state);
  call.to.query.sizes[tilekiln::gated_delta_rule::sizes::seqlen] = call.to.problem.longest;
}

tilekiln_status launch(StageCall<Packed<Delta>>& call) {
  const Delta& to = call.problem.placed();
  const auto head = static_cast<const linear_attention::DeltaEngine*>(call.choice.engine)->head[to.dtype];
  const auto scratch = static_cast<uint64_t>(linear_attention::delta_scratch(to.hdim_k, to.hdim_v)) * sizeof(float);
  return launch_stage(call, call.choice, to, to.batch * to.heads, 4 * linear_attention::delta_work(to), scratch,
                      [&](int64_t unit, void* memory) {
                        head(to, unit / to.heads, static_cast<int>(unit % to.heads), static_cast<float*>(memory));
                      });
}

}  // namespace tilekiln::op::gated_delta_rule
