// SPDX-License-Identifier: MIT
// The border between the host side and the CPU engines of gated_delta_rule and its gradients: plain data, no ISA, no std header, no inline function.
#pragma once

namespace tilekiln::linear_attention {

// An array (batch, tokens, heads, ..), strides in elements; what is last is contiguous. data is null where it is absent.
struct Heads {
  char* data;
  long long batch, token, head;
};

// One call, after every check. g holds a number a head, or one a channel of k; states are (sequences, heads, hdim_k, hdim_v), fp32.
struct Delta {
  Heads q, k, v, g, beta, out;
  Heads past, last;         // token: between rows of a state
  const int* starts;        // of sequences packed in one batch, and the end of the last; null: each batch is one
  long long batch, tokens;  // batch: sequences
  int heads, group;         // of v; heads of v that share one of k
  int hdim_k, hdim_v, dtype;
  float scale;
  bool by_channel, wide_beta, normalise;
  bool corrects;  // u = beta (v - S^T k); else beta v
};

// Gradients by the gradients of out and of the last state (of, last_of).
struct DeltaGradients {
  Delta made;
  Heads of, last_of, q, k, v, g, beta, past;
};

constexpr int kDeltaChunk = 64;  // tokens
constexpr int kDeltaMost = 256;  // elements of a head
constexpr int kDeltaPad = 16;    // what rows of scratch are padded to

// head[dtype] computes one head of one sequence; scratch holds delta_scratch(..) floats, 64-byte aligned.
struct DeltaEngine { void (*head[3])(const Delta&, long long sequence, int head, float* scratch); };

// keys[dtype] computes the gradients of one head of k of one sequence and of the heads of v that share it.
struct DeltaGradientsEngine { void (*keys[3])(const DeltaGradients&, long long sequence, int head, float* scratch); };

constexpr long long delta_padded(int n) { return (n + kDeltaPad - 1) / kDeltaPad * kDeltaPad; }
constexpr long long delta_chunks(long long tokens) { return (tokens + kDeltaChunk - 1) / kDeltaChunk; }
// Six arrays of keys of a chunk, three of its values, two squares, two numbers a token.
constexpr long long delta_chunk_scratch(long long d, long long e) {
  const long long c = kDeltaChunk;
  return 6 * c * d + 3 * c * e + 2 * c * c + 2 * c;
}
// The state, and a chunk.
constexpr long long delta_scratch(int hdim_k, int hdim_v) {
  const long long d = delta_padded(hdim_k), e = delta_padded(hdim_v);
  return d * e + delta_chunk_scratch(d, e);
}
// States before each chunk and after the last, what each token missed, and gradients of keys where heads share them: in proportion
// to tokens. Then a chunk, six more arrays of keys, three of values, two squares and three states.
constexpr long long delta_gradients_scratch(long long tokens, int group, int hdim_k, int hdim_v) {
  const long long d = delta_padded(hdim_k), e = delta_padded(hdim_v), c = kDeltaChunk, n = delta_chunks(tokens);
  return (n + 1) * d * e + n * c * e + (group > 1 ? 2 * n * c * d : 0) + delta_chunk_scratch(d, e) + 6 * c * d +
         3 * c * e + 2 * c * c + 3 * d * e;
}

}  // namespace tilekiln::linear_attention
