// Host code that operators over sequences share.
#pragma once
#include <algorithm>

#include "kernels/linear_attention/conv1d.h"
#include "kernels/runtime/array.h"
#include "kernels/runtime/entry.h"
#include "kernels/runtime/launch.h"

namespace tilekiln::linear_attention {

// An array (batch, tokens, channels), or (batch, channels, tokens) with turned.
inline Sequences sequences(const Array& from, bool turned = false) {
  if (!from.given()) return {};
  return {from.data, from.stride[0], from.stride[turned ? 2 : 1], from.stride[turned ? 1 : 2]};
}

// Arrays of both directions, and lengths.
template <class Call> void put_conv(const Call& call, int activation, Conv1d& to) {
  const auto& in = call.in;
  to.x = sequences(in.x);
  to.weight = {in.weight.data, 0, in.weight.stride[1], in.weight.stride[0]};
  to.bias = in.bias.given() ? in.bias.data : nullptr;
  to.past = sequences(in.initial_state, true);
  to.batch = call.B, to.tokens = call.S, to.blocks = (call.S + kConvBlock - 1) / kConvBlock;
  to.channels = static_cast<int>(call.C), to.width = static_cast<int>(call.Wc);
  to.dtype = static_cast<int>(call.signature.dtype);
  to.silu = activation != 0;
}

}  // namespace tilekiln::linear_attention
