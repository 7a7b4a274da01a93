// Tokens of a head and its state as padded rows of fp32 in scratch, and what tokens keep of the state.
#pragma once

#include "kernels/backends/cpu/exp2.h"
#include "kernels/backends/cpu/load.h"
#include "kernels/linear_attention/delta.h"

namespace tilekiln::cpu::inline TILEKILN_TARGET {

using linear_attention::Delta;
using linear_attention::Heads;

constexpr float kLeastGate = -100;  // e^-100 is 0 beside anything
constexpr float kSquares = 1e-6f;   // beside the sum of squares of a row that is normalised

// exp(x) of sums of gates.
TILEKILN_INLINE vf decay(vf x) { return exp2<5>(min(broadcast(126.f), mul(x, broadcast(1.44269504f)))); }
TILEKILN_INLINE float decay(float x) {
  alignas(64) float lanes[kLanes];
  store(lanes, decay(broadcast(x)));
  return lanes[0];
}

template <class T> TILEKILN_INLINE const T* row_of(const Heads& of, long long batch, long long token, int head) {
  return (const T*)of.data + batch * of.batch + token * of.token + head * of.head;
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

TILEKILN_INLINE float gate_of(const Delta& a, long long batch, long long token, int head) {
  const float g = *row_of<float>(a.g, batch, token, head);
  return g < kLeastGate ? kLeastGate : g;  // NaN stays
}
// Gates of the channels of a key, 0 past them.
TILEKILN_INLINE vf channel_gates(const float* p, int left) {
  return left > 0 ? max(broadcast(kLeastGate), widen_some(p, left)) : zero();
}

template <class T> TILEKILN_INLINE float beta_of(const Delta& a, long long batch, long long token, int head) {
  return a.wide_beta ? *row_of<float>(a.beta, batch, token, head) : number(row_of<T>(a.beta, batch, token, head));
}

// The state before the first token as padded rows: d by e.
TILEKILN_INLINE void read_state(const Delta& a, long long batch, int head, int d, int e, float* to) {
  for (int r = 0; r < d; ++r) {
    if (a.past.data && r < a.hdim_k)
      read_row(row_of<float>(a.past, batch, r, head), a.hdim_v, e, 1, to + r * e);
    else
      __builtin_memset(to + r * e, 0, e * sizeof(float));
  }
}
TILEKILN_INLINE void write_state(const Delta& a, long long batch, int head, int e, const float* from) {
  for (int r = 0; r < a.hdim_k; ++r)
    __builtin_memcpy((float*)row_of<float>(a.last, batch, r, head), from + r * e, a.hdim_v * sizeof(float));
}

template <class T> TILEKILN_INLINE void write_out(const Delta& a, long long batch, long long token, int head,
                                                  const float* from) {
  T* to = (T*)row_of<T>(a.out, batch, token, head);
  for (int c = 0; c < a.hdim_v; c += kLanes) narrow_some(to + c, load(from + c), a.hdim_v - c);
}

}  // namespace tilekiln::cpu::inline TILEKILN_TARGET
