// SPDX-License-Identifier: MIT
// Host code that operators over sequences share.
#pragma once
#include <algorithm>

#include "kernels/linear_attention/conv1d.h"
#include "kernels/linear_attention/packed.h"
#include "kernels/runtime/entry.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::linear_attention {

inline const int*& starts_of(Conv1d& one) { return one.starts; }
inline const int*& starts_of(Conv1dGradients& one) { return one.made.starts; }

// An array (batch, tokens, channels), or (batch, channels, tokens) with turned.
inline Sequences sequences(const Array& from, bool turned = false) {
  if (!from.given()) return {};
  return {from.data, from.stride[0], from.stride[turned ? 2 : 1], from.stride[turned ? 1 : 2]};
}
inline Sequences taps(const Array& from) { return {from.data, 0, from.stride[1], from.stride[0]}; }

// The shape of a state, (batch or sequences, channels, width - 1).
template <class Args> tilekiln_status conv_state(const Args& args, tilekiln_shape* shape) {
  const int64_t count = args.cu_seqlens != nullptr ? args.cu_seqlens->shape[0] - 1 : args.x->shape[0];
  *shape = {3, {count, args.x->shape[2], args.weight->shape[1] - 1}};
  return TILEKILN_OK;
}

// Arrays of both directions, and lengths. packed: where call.to.problem has what read_starts found.
template <class Call, class Problem>
void put_conv(const Call& call, int activation, const Packed<Problem>& packed, Conv1d& to) {
  const auto& in = call.in;
  to.x = sequences(in.x);
  to.weight = taps(in.weight);
  to.bias = in.bias.given() ? in.bias.data : nullptr;
  to.past = sequences(in.initial_state, true);
  to.batch = packed.sequences, to.tokens = call.S, to.blocks = (packed.longest + kConvBlock - 1) / kConvBlock;
  to.channels = static_cast<int>(call.C), to.width = static_cast<int>(call.Wc);
  to.dtype = static_cast<int>(call.signature.dtype);
  to.silu = activation != 0;
}

}  // namespace tilekiln::linear_attention
