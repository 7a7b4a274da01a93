// SPDX-License-Identifier: MIT
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
  Sequences x, weight, y, past, last;
  const void* bias;   // null: without
  const int* starts;  // of sequences packed in one batch, and the end of the last; null: each batch is one
  long long batch, tokens, blocks;  // batch: sequences; blocks: of kConvBlock tokens, in the longest
  int channels, width, dtype;
  bool silu;
};

// Gradients of x, weight and bias, of the state before each sequence, and (of, last_of) of the results that they go by.
struct Conv1dGradients {
  Conv1d made;
  Sequences of, last_of, x, weight, past;
  void* bias;
};

constexpr int kConvBlock = 128;      // tokens of a unit
constexpr int kConvChannels = 1024;  // and channels

// block[dtype] computes one block of tokens of one sequence, for the channels [first, last). Block 0 writes the last state, too.
struct Conv1dEngine { void (*block[3])(const Conv1d&, long long sequence, long long block, int first, int last); };

constexpr int kConvGradients = 32;  // channels of a unit of gradients

// channels[dtype] computes all gradients of kConvGradients channels from `first` on.
struct Conv1dGradientsEngine { void (*channels[3])(const Conv1dGradients&, int first); };

}  // namespace tilekiln::linear_attention
