// The border between the host side and the CPU engines of gated_delta_rule: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::linear_attention {

// An array (batch, tokens, heads, ..), strides in elements; what is last is contiguous. data is null where it is absent.
struct Heads {
  char* data;
  long long batch, token, head;
};

// One call, after every check. g holds a number a head, or one a channel of k; states are (batch, heads, hdim_k, hdim_v), fp32.
struct Delta {
  static constexpr bool launches_kernels = true;
  Heads q, k, v, g, beta, out;
  Heads past, last;  // token: between rows of a state
  long long batch, tokens;
  int heads, group;  // of v; heads of v that share one of k
  int hdim_k, hdim_v, dtype;
  float scale;
  bool by_channel, wide_beta, normalise;
};

constexpr int kDeltaChunk = 64;  // tokens
constexpr int kDeltaMost = 256;  // elements of a head
constexpr int kDeltaPad = 16;    // what rows of scratch are padded to

// head[dtype] computes one head of one sequence; scratch holds delta_scratch(..) floats, 64-byte aligned.
struct DeltaEngine { void (*head[3])(const Delta&, long long batch, int head, float* scratch); };

constexpr long long delta_padded(int n) { return (n + kDeltaPad - 1) / kDeltaPad * kDeltaPad; }
// The state; six arrays of keys of a chunk, two of its values, two squares, two numbers a token.
constexpr long long delta_scratch(int hdim_k, int hdim_v) {
  const long long d = delta_padded(hdim_k), e = delta_padded(hdim_v), c = kDeltaChunk;
  return d * e + 6 * c * d + 2 * c * e + 2 * c * c + 2 * c;
}

}  // namespace tilekiln::linear_attention
