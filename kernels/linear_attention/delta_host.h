// SPDX-License-Identifier: MIT
// Host code of the gated delta rule in both directions.
#pragma once
#include <cmath>

#include "kernels/linear_attention/delta.h"
#include "kernels/linear_attention/packed.h"
#include "kernels/runtime/entry.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::linear_attention {

inline const int*& starts_of(Delta& one) { return one.starts; }
inline const int*& starts_of(DeltaGradients& one) { return one.made.starts; }

inline Heads heads(const Array& from) {
  if (!from.given()) return {};
  return {from.data, from.stride[0], from.stride[1], from.stride[2]};
}
inline Heads delta_state(const Array& from) {
  if (!from.given()) return {};
  return {from.data, from.stride[0], from.stride[2], from.stride[1]};
}

// The shape of a state, (batch or sequences, nhead_v, hdim_k, hdim_v).
template <class Args> tilekiln_status delta_state_shape(const Args& args, tilekiln_shape* shape) {
  const int64_t count = args.cu_seqlens != nullptr ? args.cu_seqlens->shape[0] - 1 : args.q->shape[0];
  *shape = {4, {count, args.v->shape[2], args.q->shape[3], args.v->shape[3]}};
  return TILEKILN_OK;
}

// Arguments of both directions. packed: call.to.problem, where read_starts has been.
template <class Args, class Call, class Problem>
void put_delta(const Args& args, const Call& call, const Packed<Problem>& packed, Delta& to) {
  const auto& in = call.in;
  to.q = heads(in.q), to.k = heads(in.k), to.v = heads(in.v), to.g = heads(in.g), to.beta = heads(in.beta);
  to.past = delta_state(in.initial_state);
  to.batch = packed.sequences, to.tokens = call.S;
  to.heads = static_cast<int>(call.H), to.group = static_cast<int>(call.H / call.Hk);
  to.hdim_k = static_cast<int>(call.D), to.hdim_v = static_cast<int>(call.Dv);
  to.dtype = static_cast<int>(call.signature.dtype);
  to.scale = args.scale != nullptr ? *args.scale : 1 / std::sqrt(static_cast<float>(call.D));
  to.by_channel = static_cast<int>(call.signature.gate) != 0;
  to.wide_beta = in.beta.dtype == TILEKILN_FP32;
  to.normalise = args.qk_l2norm != 0;
  to.corrects = args.update == 0;
}

// Multiply-adds of the states of all tokens.
inline double delta_work(const Delta& one) {
  return static_cast<double>(one.starts != nullptr ? 1 : one.batch) * static_cast<double>(one.tokens + 1) * one.heads *
         one.hdim_k * one.hdim_v;
}

}  // namespace tilekiln::linear_attention
