// The border between the host side and the CPU engines of causal_conv1d and its gradients: plain data, no ISA, no std header.
#pragma once

namespace tilekiln::linear_attention {

// An array (batch, tokens, channels) of any strides, in elements; data is null where it is absent.
struct Sequences {
  char* data;
  long long batch, token, channel;
};

// One call, after every check. Weights are an array of `width` tokens, without a batch; past and last of width - 1 tokens.
struct Conv1d {
  static constexpr bool launches_kernels = true;
  Sequences x, weight, y, past, last;
  const void* bias;                 // null: without
  long long batch, tokens, blocks;  // blocks: of kConvBlock tokens, in a sequence
  int channels, width, dtype;
  bool silu;
};

constexpr int kConvBlock = 128;      // tokens of a unit
constexpr int kConvChannels = 1024;  // and channels

// block[dtype] computes one block of tokens of one sequence, for the channels [first, last). Block 0 writes the last state, too.
struct Conv1dEngine { void (*block[3])(const Conv1d&, long long batch, long long block, int first, int last); };

}  // namespace tilekiln::linear_attention
