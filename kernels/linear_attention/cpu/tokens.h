// SPDX-License-Identifier: MIT
// Tokens of a head and its state as padded rows of fp32 in scratch, and what tokens keep of the state.
#pragma once

#include "kernels/backends/cpu/exp2.h"
#include "kernels/backends/cpu/load.h"
#include "kernels/linear_attention/delta.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using linear_attention::Delta;
using linear_attention::Heads;

constexpr int kChunk = linear_attention::kDeltaChunk;
constexpr int kBlock = 16;  // tokens, of which blocks are computed whole

constexpr float kLeastGate = -100;  // e^-100 is 0 beside anything
constexpr float kSquares = 1e-6f;   // beside the sum of squares of a row that is normalised

// exp(x) of sums of gates.
TILEKILN_INLINE vf decay(vf x) { return exp2<5>(min(broadcast(126.f), mul(x, broadcast(1.44269504f)))); }
TILEKILN_INLINE float decay(float x) {
  alignas(64) float lanes[kLanes];
  store(lanes, decay(broadcast(x)));
  return lanes[0];
}

template <class T> TILEKILN_INLINE Heads moved(Heads of, long long batch, long long token, int head) {
  if (of.data) of.data += (batch * of.batch + token * of.token + head * of.head) * (long long)sizeof(T);
  return of;
}
template <class T> TILEKILN_INLINE T* row_of(const Heads& of, long long token) {
  return (T*)of.data + token * of.token;
}

// The first token of a sequence, in a batch.
struct Place { long long batch, first; };
TILEKILN_INLINE Place place_of(const Delta& a, long long sequence) {
  return {a.starts ? 0 : sequence, a.starts ? a.starts[sequence] : 0};
}

// One head of v of one sequence of a call: its arrays begin with it.
template <class T> Delta head_of(const Delta& whole, long long sequence, int head) {
  Delta a = whole;
  const auto [batch, first] = place_of(a, sequence);
  if (a.starts) a.tokens = a.starts[sequence + 1] - first;
  a.q = moved<T>(a.q, batch, first, head / a.group), a.k = moved<T>(a.k, batch, first, head / a.group);
  a.v = moved<T>(a.v, batch, first, head), a.out = moved<T>(a.out, batch, first, head);
  a.g = moved<float>(a.g, batch, first, head);
  a.beta = a.wide_beta ? moved<float>(a.beta, batch, first, head) : moved<T>(a.beta, batch, first, head);
  a.past = moved<float>(a.past, sequence, 0, head), a.last = moved<float>(a.last, sequence, 0, head);
  return a;
}

template <class T> TILEKILN_INLINE float number(const T* p) {
  alignas(64) float lanes[kLanes];
  store(lanes, widen_some(p, 1));
  return lanes[0];
}

// One row of `width` elements, times `by`; 0 up to `padded`.
template <class T> TILEKILN_INLINE void read_row(const T* p, int width, int padded, float by, float* to) {
  for (int c = 0; c < padded; c += kLanes)
    store(to + c, c < width ? mul(broadcast(by), widen_some(p + c, width - c)) : zero());
}

// A query or key, normalised where that is asked for, times `by`.
template <class T> TILEKILN_INLINE void read_key(const Delta& a, const T* p, int padded, float by, float* to) {
  if (a.normalise) {
    vf squares = zero();
    for (int c = 0; c < a.hdim_k; c += kLanes) {
      const vf x = widen_some(p + c, a.hdim_k - c);
      squares = fma(x, x, squares);
    }
    by /= __builtin_sqrtf(total(squares) + kSquares);
  }
  read_row(p, a.hdim_k, padded, by, to);
}

TILEKILN_INLINE float gate_of(const Delta& a, long long token) {
  const float g = *row_of<float>(a.g, token);
  return g < kLeastGate ? kLeastGate : g;  // NaN stays
}
// Gates of the channels of a key, 0 past them.
TILEKILN_INLINE vf channel_gates(const float* p, int left) {
  return left > 0 ? max(broadcast(kLeastGate), widen_some(p, left)) : zero();
}

template <class T> TILEKILN_INLINE float beta_of(const Delta& a, long long token) {
  return a.wide_beta ? *row_of<float>(a.beta, token) : number(row_of<T>(a.beta, token));
}

// A state, 0 where there is none, as padded rows: d by e.
TILEKILN_INLINE void read_state(const Delta& a, const Heads& state, int d, int e, float* to) {
  for (int r = 0; r < d; ++r) {
    if (state.data && r < a.hdim_k)
      read_row(row_of<float>(state, r), a.hdim_v, e, 1, to + r * e);
    else
      __builtin_memset(to + r * e, 0, e * sizeof(float));
  }
}
TILEKILN_INLINE void write_state(const Delta& a, const Heads& state, int e, const float* from) {
  for (int r = 0; r < a.hdim_k; ++r) __builtin_memcpy(row_of<float>(state, r), from + r * e, a.hdim_v * sizeof(float));
}

template <class T> TILEKILN_INLINE void write_row(T* to, const float* from, int width) {
  for (int c = 0; c < width; c += kLanes) narrow_some(to + c, load(from + c), width - c);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
