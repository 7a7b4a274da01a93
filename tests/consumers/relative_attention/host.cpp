// SPDX-License-Identifier: MIT
// Arguments of relative_attention as the plain data of its engines, and how that is cut into tiles.
#include <math.h>

#include "kernels/generated/operators/relative_attention_entries.h"

namespace tilekiln::op::relative_attention {

void fill(const Args& args, Call& call) {
  const Arrays& in = call.in;
  relative::Problem& to = call.to.problem;
  to.dtype = static_cast<int>(call.signature.dtype);
  to.features.mask = args.causal != 0;
  to.window_left = -1;
  to.window_right = 0;
  to.softmax_scale = args.softmax_scale ? *args.softmax_scale : 1 / sqrtf(static_cast<float>(call.D));
  to.nhead_q = static_cast<int>(call.H), to.nhead_k = static_cast<int>(call.Hk);
  to.hdim_q = static_cast<int>(call.D), to.hdim_v = static_cast<int>(call.Dv);
  to.batch = static_cast<int>(call.B);
  to.seqlen_q = static_cast<int>(call.Sq), to.seqlen_k = static_cast<int>(call.Sk);
  to.q = in.q.data, to.q_batch = in.q.stride[0], to.q_row = in.q.stride[1], to.q_head = in.q.stride[2];
  to.k = in.k.data, to.k_batch = in.k.stride[0], to.k_row = in.k.stride[1], to.k_head = in.k.stride[2];
  to.v = in.v.data, to.v_batch = in.v.stride[0], to.v_row = in.v.stride[1], to.v_head = in.v.stride[2];
  to.out = in.out.data, to.out_batch = in.out.stride[0], to.out_row = in.out.stride[1], to.out_head = in.out.stride[2];
  to.distance_bias = reinterpret_cast<const float*>(in.distance_bias.data);
  to.bias_of_head = in.distance_bias.stride[0];
  to.distances = static_cast<int>(call.N);
}

tilekiln_status launch(StageCall<relative::Problem>& call) {
  const relative::Problem& a = call.problem;
  const auto& engine = *static_cast<const relative::Engine*>(call.choice.engine);
  const auto tile = engine.tile[a.dtype];
  const int64_t tiles = (a.seqlen_q + engine.tile_q - 1) / engine.tile_q, units = tiles * a.nhead_q * a.batch;
  const double work = static_cast<double>(a.seqlen_q) * a.seqlen_k * (a.hdim_q + a.hdim_v) * a.nhead_q * a.batch;
  return launch_stage(call, call.choice, a, units, work, engine.scratch_bytes, [&](int64_t number, void* scratch) {
    fmha::FwdUnit unit = {};
    unit.row = static_cast<int>(number % tiles) * engine.tile_q;
    unit.head = static_cast<int>(number / tiles % a.nhead_q);
    unit.batch = static_cast<int>(number / tiles / a.nhead_q);
    unit.seqlen_q = a.seqlen_q, unit.seqlen_k = a.seqlen_k;
    unit.q_offset = unit.batch * a.q_batch, unit.k_offset = unit.batch * a.k_batch;
    unit.v_offset = unit.batch * a.v_batch, unit.out_offset = unit.batch * a.out_batch;
    tile(a, unit, scratch);
  });
}

}  // namespace tilekiln::op::relative_attention
